"""Let the backward passes of nodes run one after the other in the graph of a replay.

The executor starts whatever is ready: two branches of a residual block would be differentiated at the same time, and
what both need meanwhile would add up. So each node's backward pass waits for that of the node after it. Values do not
change. XLA drops control edges and chooses its own order.

Invariants: an edge leads from a node's backward pass to that of a node before it, which does not wait for it, not for
the order of effects either. So there is no circle. Nothing waits for what the replay does not need: it would be
computed for that alone, as the sum at the end of a segment, which holds what the sum is of until then.
"""

import contextlib
import contextvars
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfgc._core.graph import Graph, Ref
from tfgc._framework import graph_building, operation_order, tensor_attributes
from tfgc._framework.replaced import within

_CHAINS: contextvars.ContextVar["list[BackwardChain] | None"] = contextvars.ContextVar("tfgc_chains", default=None)


@contextlib.contextmanager
def sequential_backward() -> Iterator[list[tf.Tensor]]:
    """Order the backward passes of the nodes and segments that run, and are differentiated, in here.

    Yields a list for what is asked of them: gradients, without those that may be pruned, and other results.
    """
    asked: list[tf.Tensor] = []
    if tf.executing_eagerly():
        yield asked
        return
    graph: Any = tf.compat.v1.get_default_graph()
    known = len(graph.get_operations())
    with noted_order() as chains:
        yield asked
    if not chains:
        return
    needed = operation_order.needed(graph.get_operations()[known:], asked)

    def is_needed(tensor: tf.Tensor) -> bool:
        return tensor.graph is not graph or tensor.op in needed

    for chain in chains:
        for tensor, others in chain.edges(is_needed):
            if others and operation_order.has_effects(tensor.graph):  # They can let others wait for it.
                behind = operation_order.descendants(tensor.op)
                others = [other for other in others if other.op not in behind]
            graph_building.wait_for(tensor, others)


def noted_order() -> "contextlib.AbstractContextManager[list[BackwardChain]]":
    """A context that gives the chains of what runs in it; what waits for what is left to the caller."""
    return within(_CHAINS, [])


def unordered_backward() -> contextlib.AbstractContextManager:
    """A context that leaves what runs in it out: its gradients come from elsewhere."""
    return within(_CHAINS, None)


def new_chain() -> "BackwardChain | None":
    """A chain for what runs in a row; None outside of `sequential_backward`."""
    chains = _CHAINS.get()
    if chains is None:
        return None
    chains.append(BackwardChain())
    return chains[-1]


def has_chains() -> bool:
    """Whether what runs here is differentiated by chains."""
    return bool(_CHAINS.get())


def rows(graph: Graph, names: Sequence[str]) -> list[list[str]]:
    """The nodes, in their order, in rows in which each reads the one before alone.

    In a row a backward pass waits for that of the node after it anyway.
    """
    found = [[*names[:1]]]
    for before, name in itertools.pairwise(names):
        if all(ref.node == before for ref in graph.nodes[graph.position[name]].inputs):
            found[-1].append(name)
        else:
            found.append([name])
    return found


class BackwardChain:
    """What runs in a row, each to be differentiated after what follows it."""

    def __init__(self) -> None:
        # Of each: tensors of its backward pass.
        self._starts: list[list[tf.Tensor]] = []
        self._ends: list[list[tf.Tensor]] = []  # gradients of what is read
        self._forward: list[tuple[list[tf.Tensor], list[tf.Tensor]]] = []  # copies of what is read, and what is made

    def run(
        self, call: Callable[[dict[Ref, Any]], list[list]], refs: Sequence[Ref], table: Mapping[Ref, Any]
    ) -> list[list]:
        """Run what is next on what it reads of `table`, noting where its backward pass will start and end.

        It makes the outputs of each node of a row.
        """
        starts: list[tf.Tensor] = []
        ends: list[tf.Tensor] = []
        self._starts.append(starts)
        self._ends.append(ends)

        def end(upstream: tf.Tensor) -> tf.Tensor:
            ends.append(upstream)
            return upstream

        def start(upstream: tf.Tensor) -> tf.Tensor:
            upstream = tf.identity(upstream)
            starts.append(upstream)
            return upstream

        copies: list[tf.Tensor] = []
        given = {ref: passed(table[ref], end, copies) for ref in refs}
        *inside, made = call(given)
        for ref, copy in given.items():
            if tensor_attributes.mask_of(copy) is None and tensor_attributes.mask_of(table[ref]) is not None:
                tensor_attributes.set_mask(table[ref], None)  # as Keras's attention does
        self._forward.append((copies, tf.nest.flatten(made, expand_composites=True)))
        return [*inside, [passed(tensor, start, []) for tensor in made]]

    def edges(self, is_needed: Callable[[tf.Tensor], bool]) -> Iterator[tuple[tf.Tensor, list[tf.Tensor]]]:
        """What waits for what, of which only what is needed is waited for.

        What runs waits for what the one before makes; in the backward pass every start waits for the ends of the next
        one that has any.
        """
        before: list[tf.Tensor] = []
        for copies, made in self._forward:
            for copy in copies:
                yield copy, before
            before = [*filter(is_needed, made)] or before
        ends: list[tf.Tensor] = []
        for starts, own in zip(reversed(self._starts), reversed(self._ends)):
            for start in starts:
                yield start, ends
            ends = [*filter(is_needed, own)] or ends


def passed(tensor: Any, backward: Callable[[tf.Tensor], tf.Tensor], copies: list[tf.Tensor]) -> Any:
    """A copy of `tensor` whose gradient goes through `backward`; sparse and ragged ones as they are.

    What Keras attached to it is copied, too. All copies are added to the list `copies`.
    """
    if not isinstance(tensor, tf.Tensor):
        return tensor

    def copy(value: tf.Tensor) -> tf.Tensor:
        is_taken = value.dtype.is_floating
        copies.append(graph_building.recorded_copy(value, backward) if is_taken else tf.identity(value))
        return copies[-1]

    return tensor_attributes.copied(tensor, copy)
