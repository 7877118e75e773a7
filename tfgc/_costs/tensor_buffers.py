"""Which tensors of a graph share a buffer, its bytes, and how buffers come and go while its operations run.

An operation that only renames its input makes no buffer; an elementwise one reuses that of an input that dies there, as
TensorFlow's kernels do. A list of tensors, what a recurrent layer keeps, has an entry for each trip of the loop that
fills it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfgc._core.tensors import itemsize
from tfgc._costs import loop_trips
from tfgc._pure.flop_counts import SHAPE_ONLY, VIEWS

IN_PLACE = frozenset(
    ["Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "DivNoNan", "BiasAdd", "Neg", "Exp", "Log", "Log1p", "Abs"]
    + ["Sign", "Relu", "Relu6", "ReluGrad", "Relu6Grad", "LeakyRelu", "LeakyReluGrad", "Elu", "EluGrad", "Selu"]
    + ["SeluGrad", "Tanh", "TanhGrad", "Sigmoid", "SigmoidGrad", "Softplus", "SoftplusGrad", "Softsign", "Softmax"]
    + ["LogSoftmax", "Square", "SquaredDifference", "Sqrt", "SqrtGrad", "Rsqrt", "RsqrtGrad", "Reciprocal", "Erf"]
    + ["Erfc", "Pow", "Maximum", "Minimum", "SelectV2", "ClipByValue", "Floor", "Round", "LogicalAnd", "LogicalNot"]
    + ["Xdivy", "Xlogy"]
)


class Buffers:
    """Which tensors of a graph share a buffer, and the bytes of each.

    Gradients of weights count as nothing, since they are counted apart, unless they are among the `upstream` gradients.
    Tensors whose first size alone is not known have so many `rows`.
    """

    def __init__(
        self,
        graph: Any,
        weight_gradients: Iterable[tf.Tensor],
        upstream: Sequence[tf.Tensor],
        rows: int | None = None,
    ) -> None:
        self._rows = rows
        self._roots: dict[Any, tf.Tensor] = {}
        counted = {t.ref() for t in upstream}
        roots = (self.root(g).ref() for g in weight_gradients)
        self._sizes = {ref: 0 for ref in roots if ref not in counted}
        self._functions = loop_trips.functions_of(graph)
        self._gains = _gains_in_loops(self._functions)

    def root(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor that `tensor` renames, or itself."""
        key = tensor.ref()
        if key not in self._roots:
            source = renamed(tensor)
            self._roots[key] = tensor if source is None else self.root(source)
        return self._roots[key]

    def bytes(self, tensor: tf.Tensor) -> int:
        """Bytes of the buffer that a tensor which renames no other one has."""
        key = tensor.ref()
        if key not in self._sizes:
            is_list = tensor.dtype == tf.variant
            size = _list_bytes(tensor, self._functions, self._gains) if is_list else tensor_bytes(tensor, self._rows)
            self._sizes[key] = size
        return self._sizes[key]

    def fuse(self, tensor: tf.Tensor) -> None:
        """Count the buffer of a tensor as nothing from now on."""
        self._sizes[tensor.ref()] = 0


def tensor_bytes(tensor: tf.Tensor, rows: int | None = None) -> int:
    """Bytes of a tensor of known shape; 0 for resources and variants. A string is its handle, as in `Spec.bytes`.

    A first size that is not known counts as `rows`.
    """
    shape = tensor.shape
    if shape.rank and shape[0] is None:
        shape = tf.TensorShape([rows, *shape[1:]])
    count = shape.num_elements()
    if count is None or tensor.dtype in (tf.resource, tf.variant):
        return 0
    return count * itemsize(tensor.dtype.name)


def trace(
    operations: Sequence[tf.Operation],
    buffers: Buffers,
    there: Mapping[Any, int],
    stays: Iterable[Any],
    while_running: Mapping[tf.Operation, int],
) -> tuple[int, ...]:
    """Signed bytes of the buffers that come and go while `operations` run, in order.

    `while_running` are bytes that operations take besides. `there` are bytes of buffers that are there before, by
    tensor; buffers of the tensors `stays` do not go.
    """
    last: dict[Any, int] = {}
    for i, op in enumerate(operations):
        if op.type not in SHAPE_ONLY:
            last.update((buffers.root(t).ref(), i) for t in op.inputs)
        for t in op.outputs:
            last.setdefault(buffers.root(t).ref(), i)
    ends: dict[int, list[Any]] = {}
    for ref, i in last.items():
        ends.setdefault(i, []).append(ref)
    alive, signed = dict(there), []
    for i, op in enumerate(operations):
        dying = [ref for ref in ends.get(i, ()) if ref not in stays]
        for t in op.outputs:
            if renamed(t) is not None:
                continue
            overwritten = _overwritten(op, t, buffers, alive, dying)
            if overwritten is not None:
                del alive[overwritten]
            elif buffers.bytes(t):
                signed.append(buffers.bytes(t))
            alive[t.ref()] = buffers.bytes(t)
        signed += [while_running[op], -while_running[op]] if op in while_running else []
        for ref in dying:
            if ref in alive:
                size = alive.pop(ref)
                signed += [-size] if size else []
    return tuple(signed)


def _overwritten(
    op: tf.Operation, output: tf.Tensor, buffers: Buffers, alive: Mapping[Any, int], dying: Sequence[Any]
) -> Any:
    """The input whose buffer an in-place operation reuses for an output, or None."""
    read = (buffers.root(t).ref() for t in op.inputs) if op.type in IN_PLACE else ()
    return next((r for r in read if r in alive and r in dying and alive[r] == buffers.bytes(output)), None)


def renamed(tensor: tf.Tensor) -> tf.Tensor | None:
    """The tensor whose buffer `tensor` merely renames, or None."""
    op = tensor.op
    if op.type in VIEWS:
        return op.inputs[0]
    if op.type == "IdentityN":
        return op.inputs[tensor.value_index]
    if op.type == "Mul":
        # TensorFlow's optimizer drops a multiplication by one, such as the beta of silu.
        for one, other in ((0, 1), (1, 0)):
            scalar = op.inputs[one].shape.rank == 0 and op.inputs[one].op.type == "Const"
            if scalar and tf.get_static_value(op.inputs[one]) == 1:
                return op.inputs[other]
    return None


def _list_bytes(tensor: tf.Tensor, functions: loop_trips.Functions, gains: dict[str, dict[int, int]]) -> int:
    """Bytes of a list: what a loop puts into it, once a trip (its `gains`), or the tensor that it was made of."""
    if tensor.op.type == "TensorListFromTensor":
        return tensor_bytes(tensor.op.inputs[0])
    if tensor.op.type not in loop_trips.LOOPS:
        return 0
    gained = gains.get(tensor.op.get_attr("body").name, {}).get(tensor.value_index, 0)
    return gained * loop_trips.trips(tensor.op, functions) if gained else 0


def _gains_in_loops(functions: loop_trips.Functions) -> dict[str, dict[int, int]]:
    """For each function of a graph with loops: bytes that each of its outputs gains in one trip."""
    bodies: dict[str, dict[int, int]] = {}
    for function in functions.values():
        nodes = {node.name: node for node in function.node_def}
        # What a trip starts with is an argument, and no node.
        shapes = {argument.name: function.arg_attr[i] for i, argument in enumerate(function.signature.input_arg)}
        shapes = {name: found.attr["_output_shapes"].list.shape for name, found in {**shapes, **nodes}.items()}
        gains = {}
        for i, argument in enumerate(function.signature.output_arg):
            node = loop_trips.maker(nodes, function.ret[argument.name])
            if node is None or node.op not in ("TensorListPushBack", "TensorListSetItem"):
                continue
            name, *port = node.input[1 if node.op == "TensorListPushBack" else 2].split(":")
            item = shapes.get(name)
            made_by = loop_trips.maker(nodes, name)
            # What reads a variable puts the one buffer of the variable into a list, at each trip.
            if item and not (made_by is not None and made_by.op == "ReadVariableOp"):
                shape = tf.TensorShape(item[int(port[1]) if port else 0])
                gains[i] = (shape.num_elements() or 0) * tf.as_dtype(node.attr["element_dtype"].type).size
        bodies[function.signature.name] = gains
    return bodies
