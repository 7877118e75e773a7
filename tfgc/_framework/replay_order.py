"""Let the replays of one backward pass run one after the other in a graph, the last first run first.

Each waits for the gradients that the one of the first run after its own passes on, and for those of weights of the one
before that. docs/design/framework.md says why. It waits only for those that the pass was asked for: TensorFlow computes
whatever a control edge comes from, also what it would have pruned. Where a replay runs a plan, `backward_order` makes
the edges inside. XLA drops control edges, so there a replay is given tensors to wait for.

Invariant: an edge leads from operations that exist to one that is being made, or to the start of a replay that none of
them needs: there is no circle. Both belong to one graph and to one call of `tape.gradient`, hence to one replica.
"""

import itertools
import os
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._framework import (
    backward_order,
    gradient_calls,
    graph_building,
    operation_order,
    private_api,
    weight_gradients,
)

# Of first runs, in the order in which they are traced.
numbers = itertools.count()
_PASSES = "tfgc_backward_passes"  # the attribute of a graph that holds its passes by their keys, and goes with it


def current_pass() -> "BackwardPass | None":
    """The backward pass that is being traced; None where replays do not wait for one another."""
    if tf.executing_eagerly() or (backward_order.has_chains() and not private_api.in_xla()):
        return None
    graph = tf.compat.v1.get_default_graph()
    calls = list(gradient_calls.running())
    key = (weakref.ref(calls[0].tape), tuple(map(id, calls[0].sources))) if calls else None
    found = getattr(graph, _PASSES, {}).get(key)
    if found is None:
        # Inside of a replay sources are its arguments: whether their gradients are used says the call around it.
        made = _XlaPass if private_api.in_xla() else BackwardPass
        found = made(key, calls[0].targets if calls else [], calls[-1].sources if calls else None)
    return found


def passes(graph: Any) -> "list[BackwardPass]":
    """Those that were traced in a graph so far."""
    return list(getattr(graph, _PASSES, {}).values())


class Traced(NamedTuple):
    """A replay that was traced."""

    place: tuple[int, int]  # among the others
    made: tf.Operation | None  # of its first run, where that is in a graph
    start: tf.Tensor
    ends: list[tf.Tensor]  # what the replay after it waits for
    weights: list[tf.Tensor]  # what the one after that waits for, too


class BackwardPass:
    """One call of `tape.gradient` in a graph; `sources` are None where a function is differentiated."""

    def __init__(self, key: Any, targets: Sequence[tf.Tensor], sources: Sequence[tf.Tensor] | None) -> None:
        self.key = key
        # Numbers that the replay that is being traced waits for, besides the edges that it has.
        self.awaited: list[tf.Tensor] = []
        # By id of a tensor, once it is known.
        self._leads = None if sources is None else dict.fromkeys(map(id, sources), True)
        self.replays: list[Traced] = []
        self._next: Traced | None = None  # the replay that is being traced
        self._backlog: weight_gradients.Backlog | None = None
        self._traced = weight_gradients.Backward(targets)  # what is differentiated before the next replay, or by it
        self.begun: int = self._traced.begun  # how many operations there were before

    def wait(
        self, number: int, made: tf.Operation | None, upstream: Sequence[Any], backlog: weight_gradients.Backlog | None
    ) -> list[Any]:
        """The upstream gradients of the replay of a first run, which are there when those before it are done.

        The run has a number, and made a result by an operation. The backlog is of gradients of weights that are put off
        in the replay, and since the one before it.
        """
        self._backlog = backlog
        # The last first run comes first, once for each time that a persistent tape is asked.
        place = sum(replay.place[1] == -number for replay in self.replays), -number
        before = max((replay for replay in self.replays if replay.place < place), default=None)
        ends, weights = ([], []) if before is None else (before.ends, [*before.weights])
        if backlog is not None:
            after = self._after(place)
            late = () if after is None else operation_order.descendants(after.start.op)
            weights += self._traced.order_so_far(upstream, self.asks_for, backlog, late)
            self._traced = weight_gradients.Backward()
        first, *others = upstream
        with tf.control_dependencies(ends):
            start = tf.identity(first)
        self._next = Traced(place, made, start, ends, weights)
        return [start, *others]

    def done(self, arguments: Sequence[tf.Tensor], passed_on: int, gradients: Sequence[Any]) -> None:
        """Let other replays wait for gradients of one that was just traced, of which the first ones are passed on."""
        graph = tf.compat.v1.get_default_graph()

        def asked(part: slice) -> list[tf.Tensor]:
            pairs = zip(arguments[part], gradients[part])
            found = [g for x, g in pairs if g is not None and self.asks_for(x)]
            return [g for g in tf.nest.flatten(found, expand_composites=True) if g.graph is graph]

        passed, weights = asked(slice(passed_on)), asked(slice(passed_on, None))
        self._traced.order(passed, weights, self._backlog)
        self._traced = weight_gradients.Backward()
        assert self._next is not None
        place, made, start, ends, earlier = self._next
        if passed and _threads() == 1:
            ends, earlier = passed + earlier + weights, []
        elif passed:
            ends, earlier = passed + earlier, weights
        elif weights:
            ends, earlier = weights, []
        after = self._after(place)
        if after is not None:
            behind = operation_order.descendants(after.start.op)
            graph_building.wait_for(after.start, [end for end in ends if end.op not in behind])
        self.replays.append(Traced(place, made, start, ends, earlier))
        self._keep()

    def _keep(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        passes = getattr(graph, _PASSES, {})
        setattr(graph, _PASSES, passes)
        passes[self.key] = self

    def _after(self, place: tuple[int, int]) -> Traced | None:
        """The replay that was traced already and should run next after the one of this place; None if there is none."""
        return min((replay for replay in self.replays if replay.place > place), default=None)

    def asks_for(self, tensor: tf.Tensor) -> bool:
        """Whether the gradient of a tensor is asked for: a source of the pass is among all that it was made of."""
        known = self._leads
        if known is None:
            return True
        readers: dict[int, Any] = {id(tensor): None}
        captured: dict[Any, dict[int, Any]] = {}
        waiting = [tensor]
        while waiting:
            tensor = waiting.pop()
            if known.get(id(tensor)):
                leading: Any = tensor
                while leading is not None:
                    known[id(leading)] = True
                    leading = readers.get(id(leading))
                return True
            if id(tensor) in known or not tf.is_symbolic_tensor(tensor):
                continue
            graph = tensor.graph
            if graph not in captured:
                captured[graph] = {id(inner): outer for outer, inner in getattr(graph, "captures", ())}
            outer = captured[graph].get(id(tensor))
            for read in tensor.op.inputs if outer is None else [outer]:
                if id(read) not in readers:
                    readers[id(read)] = tensor
                    waiting.append(read)
        known.update(dict.fromkeys(readers, False))
        return False


class _XlaPass(BackwardPass):
    """One that XLA compiles: its replays wait for gradients of kernels that were kept, which it else puts off."""

    def wait(
        self, number: int, made: tf.Operation | None, upstream: Sequence[Any], backlog: weight_gradients.Backlog | None
    ) -> list[Any]:
        weights, _ = self._traced.so_far(upstream, self.asks_for)
        kernels = [op.outputs[0] for op in weights if (op.outputs[0].shape.rank or 0) > 1]
        # One number of each; a sum, since there may be none.
        self.awaited = [tf.reduce_sum(tf.reshape(k, [-1])[:1]) for k in kernels if k.dtype.is_floating]
        return [*upstream]

    def done(self, arguments: Sequence[tf.Tensor], passed_on: int, gradients: Sequence[Any]) -> None:
        self._traced = weight_gradients.Backward()
        self._keep()


def _threads() -> int:
    """How many operations of a graph TensorFlow runs at a time, on a CPU."""
    given = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    chosen = tf.config.threading.get_inter_op_parallelism_threads() or (int(given) if given.isdecimal() else 0)
    if chosen:
        return chosen
    # Linux alone says which processors the process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
