"""A function traced once by TensorFlow, read as a `Step`.

The trace is made in a thread of its own: inside of a function under construction TensorFlow pauses the tapes wherever
it lifts something out of that function, and a tape that surrounds the call would record the trace. Of the two traces
that tf.function makes where variables are created, the final one counts.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfgc._framework import isolated_traces
from tfgc._framework.diverted_calls import DivertedCalls
from tfgc._framework.internals import gradients_util
from tfgc._step.step import SMALL, Op, Step, Tensor
from tfgc._step.work import tensor_bytes, work

# What a step asks for gradients by: `tape.gradient` (and what is made of it, such as `jacobian`), and `tf.gradients`.
_GRADIENTS = (DivertedCalls(tf.GradientTape, "gradient"), DivertedCalls(gradients_util, "_GradientsHelper"))
# A read of a variable, alone of all stateful operations, may be done twice: a copy reads what the first one read.
_MAY_READ_AGAIN = ("ReadVariableOp",)


class Trace:
    """What TensorFlow traced of a step; never changes.

    Attributes:
        function: The concrete function.
        ops: Its operations, as made; a `Step` numbers them so.
        calls: For each gradient call where its operations begin and end.
    """

    def __init__(self, function: Any, calls: list[tuple[int, int]], rows: int | None, small: int) -> None:
        self.function = function
        self.ops: list[tf.Operation] = function.graph.get_operations()
        self.calls = calls
        self._at = {op.name: i for i, op in enumerate(self.ops)}
        self._rows, self._small = rows, small

    @functools.cached_property
    def step(self) -> Step:
        """The step as traced, without what nothing reads."""
        outermost = [not self._is_differentiated(call) for call in range(len(self.calls))]
        begun = [start for start, _ in self.calls]
        spans = [span for span, is_outermost in zip(self.calls, outermost) if is_outermost]
        ops, call = {}, 0
        for i, op in enumerate(self.ops):
            while call < len(begun) and begun[call] <= i:
                call += 1
            read = [self._tensor(t) for t in op.inputs]
            ops[i] = Op(
                op.name,
                op.type,
                tuple(map(self._behind_gathered, read)) if call else tuple(read),
                tuple(self._at[control.name] for control in op.control_inputs),
                tuple(tensor_bytes(t, self._rows) for t in op.outputs),
                call,
                any(start <= i < end for start, end in spans),
                _is_stateful(op),
                work(op, self._rows),
            )
        results = tuple(self._tensor(t) for t in self.function.graph.outputs)
        kept = [self._at[op.name] for op in self.function.graph.control_outputs]
        wanted = _needed(ops, [i for i, _ in results] + kept + [i for i, op in ops.items() if op.is_stateful])
        order = tuple(i for i in ops if i in wanted)
        return Step({i: ops[i] for i in order}, order, results, tuple(outermost), self._small)

    @functools.cached_property
    def definition(self) -> Any:
        """The GraphDef of the trace."""
        return self.function.graph.as_graph_def()

    def _tensor(self, tensor: tf.Tensor) -> Tensor:
        return self._at[tensor.op.name], tensor.value_index

    def _behind_gathered(self, tensor: Tensor) -> Tensor:
        """Behind an IdentityN: Keras gathers all gradients in one, which holds each until the last is there."""
        while self.ops[tensor[0]].type == "IdentityN" and not self.ops[tensor[0]].control_inputs:
            if tensor[0] < self.calls[0][0]:
                break
            tensor = self._tensor(self.ops[tensor[0]].inputs[tensor[1]])
        return tensor

    def _is_differentiated(self, call: int) -> bool:
        """Whether a later gradient call reads what this one made on its way, as derivatives of derivatives do."""
        start, end = self.calls[call]
        return any(
            start <= self._at[t.op.name] < end and t.dtype.is_floating and t.shape.rank != 0
            for later, until in self.calls[call + 1 :]
            for op in self.ops[later:until]
            for t in op.inputs
        )


def trace(function: Any, *args: Any, rows: int | None = None, small: int = SMALL, **kwargs: Any) -> Trace:
    """Trace a `tf.function` for these arguments.

    Args:
        function: The `tf.function`.
        *args: What it takes: tensors, `tf.TensorSpec`s, Python values, structures of them.
        rows: What an open size counts as, such as the samples of a batch; one without it.
        small: Bytes below which buffers are not planned.
        **kwargs: The same by name.

    Returns:
        A `Trace`.
    """
    return isolated_traces.in_own_thread(lambda: _traced(function, args, kwargs, rows, small))


def _traced(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int | None, small: int) -> Trace:
    noted: list[tuple[Any, int, int]] = []
    with contextlib.ExitStack() as stack:
        for gradients in _GRADIENTS:
            stack.enter_context(gradients.to(functools.partial(_noting, noted, gradients)))
        made = function.get_concrete_function(*args, **kwargs)
    spans = sorted((start, end) for graph, start, end in noted if graph is made.graph and end > start)
    return Trace(made, list(_outer(spans)), rows, small)


def _noting(noted: list[tuple[Any, int, int]], gradients: DivertedCalls, *args: Any, **kwargs: Any) -> Any:
    graph: Any = tf.compat.v1.get_default_graph()
    start = _count(graph)
    result = gradients.original(*args, **kwargs)
    noted.append((graph, start, _count(graph)))
    return result


def _count(graph: Any) -> int:
    return len(graph.get_operations()) if isinstance(graph, tf.Graph) else 0


def _outer(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The spans that lie in no other: a custom gradient may ask for gradients while those of another call are made."""
    until = 0
    for start, end in spans:
        if end > until:
            yield start, end
            until = end


def _is_stateful(op: tf.Operation) -> bool:
    return op.type == "Placeholder" or (op.op_def.is_stateful and op.type not in _MAY_READ_AGAIN)


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
