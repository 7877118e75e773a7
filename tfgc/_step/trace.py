"""A function traced once by TensorFlow, read as a `Step`.

The trace is made in a thread of its own: inside of a function under construction TensorFlow pauses the tapes wherever
it lifts something out of that function, and a tape that surrounds the call would record the trace. Of the two traces
that tf.function makes where variables are created, the final one counts.
"""

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import concrete_functions, isolated_traces
from tfgc._step import gradient_calls, layer_spans
from tfgc._step.inlined import Inlined, is_stateful
from tfgc._step.loop_trips import LOOPS
from tfgc._step.sizes import sized
from tfgc._step.step import FOLDED, SMALL, Op, Step, Tensor
from tfgc._step.stored_variants import Variants
from tfgc._step.values import Values
from tfgc._step.work import rows_of, tensor_bytes, work

# Of all bytes that a step makes, a buffer that is planned takes at least one of so many shares.
_SHARES = 2000


class Trace:
    """What TensorFlow traced of a step, calls of functions inlined; never changes.

    Attributes:
        function: The concrete function.
        ops: Its operations, as made; a `Step` numbers them so.
        nodes: Of each the node of a GraphDef.
        definition: The GraphDef as made, with the functions that nodes call.
        results: Names of the tensors that it returns.
        last: Names of the operations that must have run when it returns.
        registered: What has to live as long as any graph of its nodes.
        calls: For each gradient call where its operations begin and end.
        begins: For each operation of the function's own graph, and for its end, where it begins in the trace.
        kept: What lives as long as the trace.
    """

    kept: Any = None

    def __init__(
        self,
        function: Any,
        noted: tuple[list[tuple[Any, int, int]], list[layer_spans.Call]],
        shapes: Sequence[tf.TensorShape],
        small: int | None,
        every: bool = False,
    ) -> None:
        self.function, self._noted = function, noted
        self.definition = function.graph.as_graph_def()
        functions = {each.signature.name: each for each in self.definition.library.function}
        inlined = Inlined(function.graph, functions, every)
        self.definition.library.function.extend(inlined.functions)
        self._functions = functions | {each.signature.name: each for each in inlined.functions}
        self.registered = list(map(concrete_functions.registered, inlined.functions))
        self.ops, self.nodes = inlined.ops, inlined.nodes
        self.results, self.last = inlined.results, inlined.last
        self.begins = inlined.graphs[0][1]
        self._graphs = inlined.graphs
        self.calls = gradient_calls.spans(inlined.graphs, noted[0])
        self._at = {node.name: i for i, node in enumerate(self.nodes)}
        self._rows, self._shapes, self._small = rows_of(shapes), shapes, small

    def counting(self, shapes: Sequence[tf.TensorShape]) -> "Trace":
        """The same trace, where open sizes count as they do for arguments of other shapes."""
        made = copy.copy(self)
        vars(made).pop("step", None)
        made._rows, made._shapes = rows_of(shapes), shapes
        return made

    def layer_spans(self, layers: Iterable[keras.Layer]) -> list[list[tuple[int, int]]]:
        """For each layer where the operations of its calls begin and end, without those in another one."""
        return layer_spans.spans(self._graphs, self._noted[1], layers)

    @functools.cached_property
    def step(self) -> Step:
        """The step as traced, without what nothing reads."""
        outermost = [not self._is_differentiated(call) for call in range(len(self.calls))]
        begun = [start for start, _ in self.calls]
        spans = [span for span, is_outermost in zip(self.calls, outermost) if is_outermost]
        given = [tensor.op for tensor in self.function.graph.inputs if tensor.dtype != tf.resource]
        shapes = dict(zip(given, self._shapes))  # placeholders of a dictionary may be made in another order
        variants, sizes = Variants(self._rows), sized(self.ops, self.nodes, self.definition, shapes)
        ops, call, values, fixed = {}, 0, Values(), set[int]()
        for i, (op, like, node) in enumerate(zip(self.ops, sizes, self.nodes)):
            while call < len(begun) and begun[call] <= i:
                call += 1
            read, controls = self.read[i]
            read = tuple(map(self.behind_gathered, read)) if call else read
            is_stateful = op.type == "Placeholder" or (op.type != "ReadVariableOp" and self.is_stateful(i))
            made = self._sizes(op, like, variants)
            # What follows from constants TensorFlow computes once, and holds. A read may be done again.
            follows = read and not is_stateful and all(t[0] in fixed for t in read)
            if op.type == "Const" or (follows and sum(made) <= FOLDED):
                fixed.add(i)
            ops[i] = Op(
                node.name,
                op.type,
                read,
                (*controls, *values.readers(i, op.type, read, call)),
                (0,) * len(op.outputs) if i in fixed else made,
                call,
                any(start <= i < end for start, end in spans),
                is_stateful,
                work(like, self._rows),
            )
        results, kept = tuple(map(self.tensor, self.results)), [self._at[name] for name in self.last]
        wanted = _needed(ops, [i for i, _ in results] + kept + [i for i, op in ops.items() if op.is_stateful])
        order = tuple(i for i in ops if i in wanted)
        # What is small in a large step is most of a small one.
        small = min(SMALL, sum(sum(ops[i].sizes) for i in order) // _SHARES) if self._small is None else self._small
        ends = layer_spans.ends(self._graphs, self._noted[1])
        return Step({i: ops[i] for i in order}, order, results, tuple(outermost), small, ends)

    @functools.cached_property
    def read(self) -> list[tuple[tuple[Tensor, ...], tuple[int, ...]]]:
        """For each operation the tensors that it reads, and the operations that it waits for."""
        rows = [[name for name in node.input if name[0] != "^"] for node in self.nodes]
        waits = [[name[1:] for name in node.input if name[0] == "^"] for node in self.nodes]
        return [(tuple(map(self.tensor, r)), tuple(self._at[name] for name in w)) for r, w in zip(rows, waits)]

    def is_stateful(self, number: int) -> bool:
        """Whether an operation may do or return something else when it runs again."""
        return is_stateful(self.nodes[number], self._functions)

    def tensor(self, name: str) -> Tensor:
        """The tensor of a name."""
        maker, _, index = name.partition(":")
        return self._at[maker], int(index or 0)

    def behind_gathered(self, tensor: Tensor) -> Tensor:
        """Behind an IdentityN: Keras gathers all gradients in one, which holds each until the last is there."""
        while self.calls and self.ops[tensor[0]].type == "IdentityN" and tensor[0] >= self.calls[0][0]:
            read, controls = self.read[tensor[0]]
            if controls:
                break
            tensor = read[tensor[1]]
        return tensor

    def _sizes(self, op: tf.Operation, like: tf.Operation, variants: Variants) -> tuple[int, ...]:
        # What a list holds may be counted elsewhere; planned it is.
        least = 0 if op.type not in LOOPS else SMALL if self._small is None else self._small
        return tuple(
            max(variants.bytes(t), least) if t.dtype == tf.variant else tensor_bytes(other, self._rows)
            for t, other in zip(op.outputs, like.outputs)
        )

    def _is_differentiated(self, call: int) -> bool:
        """Whether a later gradient call reads what this one made on its way, as derivatives of derivatives do."""
        start, end = self.calls[call]
        read = {
            t for later, until in self.calls[call + 1 :] for i in range(later, until) for t in self.read[i][0]
            if start <= t[0] < end
        }  # fmt: skip
        made = (self.ops[i].outputs[index] for i, index in read)
        return any(t.dtype.is_floating and t.shape.rank != 0 for t in made)


def trace(
    function: Any,
    *args: Any,
    shapes: Sequence[tf.TensorShape] = (),
    small: int | None = None,
    **kwargs: Any,
) -> Trace:
    """Trace a `tf.function` for these arguments: tensors, `tf.TensorSpec`s, Python values, structures of them.

    Args:
        function: The `tf.function`.
        shapes: Of the tensors among the arguments of a call, in order: sizes that the trace leaves open count as they
            follow from these.
        small: Bytes below which buffers are not planned. Default: 32 KiB, fewer in a step that makes less than 64 MB.
        **kwargs: The same by name.
    """

    def traced() -> Trace:
        with gradient_calls.noted() as gradients, layer_spans.noted() as layers:
            made = function.get_concrete_function(*args, **kwargs)
        return Trace(made, (gradients, layers), shapes, small)

    return isolated_traces.in_own_thread(traced)


def _needed(ops: Mapping[int, Op], wanted: list[int]) -> set[int]:
    """What must run for some operations to run."""
    found: set[int] = set()
    while wanted:
        i = wanted.pop()
        if i not in found:
            found.add(i)
            wanted += [t[0] for t in ops[i].inputs]
            wanted += ops[i].controls
    return found
