"""What keeps XLA from merging copies with what they copy, since control edges do nothing there.

A copy reads what it is given plus a zero that XLA cannot fold and that is made from the trigger, the last large
gradient before the segment's first copy: `isnan(s) & isinf(s)` of its sum `s`. So a copy differs from what it copies,
and cannot start before its trigger. Stored tensors that are read late pass a barrier, behind which XLA does not look.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tfgc._step.step import Step, Tensor
from tfgc._step.trace import Trace


class Fences:
    """Adds the nodes of fences to a GraphDef as they are needed."""

    def __init__(self, trace: Trace, step: Step, definition: Any) -> None:
        self._trace, self._step, self._definition = trace, step, definition
        self._fenced: dict[tuple[Tensor, tuple[int, ...]], str] = {}
        self._held: dict[Tensor, str] = {}
        self._stored = {
            step.buffer(t) for op in step.ops.values() if op.segment for t in op.inputs if not step.ops[t[0]].segment
        }
        self._zeros: dict[tuple[int, ...], str] = {}  # by segment
        self._begun: dict[int, int] = {}  # for each operation how many segments began before it
        large: Tensor | None = None
        for i in step.order:
            op = step.ops[i]
            self._begun[i] = len(self._zeros)
            if op.segment:
                if op.segment not in self._zeros and large is not None:
                    self._zeros[op.segment] = self._zero(large, op.segment)
            elif op.call and "BackpropFilter" not in op.type:
                for k, size in enumerate(op.sizes):
                    if size >= step.small and self._value((i, k)).dtype.is_floating:
                        large = i, k

    def read(self, number: int, tensor: Tensor) -> str:
        """The name by which an operation reads a tensor."""
        step = self._step
        op, maker, buffer = step.ops[number], step.ops[tensor[0]], step.buffer(tensor)
        is_stored = maker.call < op.call and buffer in self._stored
        # Else XLA adds gradients up where the sum is read at last, and holds all of them until then.
        is_late = op.is_gradient and maker.is_gradient and self._begun[tensor[0]] < self._begun[number]
        is_held = not maker.segment and (is_stored or is_late) and step.is_planned(buffer)
        plain = self._hold(tensor) if is_held else self._name(tensor)
        if not op.segment or op.segment not in self._zeros or maker.segment == op.segment or maker.type == "Const":
            return plain
        dtype = self._value(tensor).dtype
        if not (dtype.is_floating or dtype.is_integer or dtype == tf.bool):
            return plain
        # One fenced input will do, and a fenced weight would be a copy of it.
        is_bound = any(step.ops[other[0]].segment == op.segment for other in op.inputs)
        is_weight = maker.type == "ReadVariableOp" and dtype.is_floating
        is_free = is_bound or is_weight or tensor[0] in step.known_by_shapes
        if not step.is_planned(buffer) and is_free:
            return plain
        key = tensor, op.segment
        if key not in self._fenced:
            self._fenced[key] = self._plus_zero(plain, self._zeros[op.segment], dtype)
        return self._fenced[key]

    def _plus_zero(self, plain: str, zero: str, dtype: Any) -> str:
        name = f"fenced/{len(self._fenced)}"
        if dtype == tf.bool:
            return self._add("LogicalOr", name, [plain, zero])
        cast = self._add("Cast", f"{name}/zero", [zero], SrcT=tf.bool, DstT=dtype, Truncate=False)
        return self._add("AddV2", name, [plain, cast], T=dtype)

    def _zero(self, tensor: Tensor, segment: tuple[int, ...]) -> str:
        value, at = self._value(tensor), f"fence/{'/'.join(map(str, segment))}"
        axes = self._add("Const", f"{at}/axes", [], dtype=tf.int32, value=np.arange(value.shape.rank, dtype=np.int32))
        total = self._add("Sum", f"{at}/sum", [self._name(tensor), axes], T=value.dtype, Tidx=tf.int32, keep_dims=False)
        kinds = [self._add(kind, f"{at}/{kind}", [total], T=value.dtype) for kind in ("IsNan", "IsInf")]
        return self._add("LogicalAnd", f"{at}/never", kinds)

    def _hold(self, tensor: Tensor) -> str:
        if self._value(tensor).dtype == tf.variant:  # a list of a loop's, which XLA lets pass no barrier
            return self._name(tensor)
        if tensor not in self._held:
            node = self._definition.node.add()
            node.op, node.name = "XlaOptimizationBarrier", f"held/{len(self._held)}"
            node.input.append(self._name(tensor))
            node.attr["T"].list.type.append(self._value(tensor).dtype.as_datatype_enum)
            self._held[tensor] = node.name
        return self._held[tensor]

    def _value(self, tensor: Tensor) -> Any:
        op = self._step.ops[tensor[0]]
        return self._trace.ops[op.traced if op.segment else tensor[0]].outputs[tensor[1]]

    def _name(self, tensor: Tensor) -> str:
        return self._step.tensor_name(tensor)

    def _add(self, kind: str, name: str, inputs: list[str], **attributes: Any) -> str:
        node = self._definition.node.add()
        node.op, node.name = kind, name
        node.input.extend(inputs)
        for key, value in attributes.items():
            if isinstance(value, tf.DType):
                node.attr[key].type = value.as_datatype_enum
            elif isinstance(value, bool):
                node.attr[key].b = value
            else:
                node.attr[key].tensor.CopyFrom(tf.make_tensor_proto(value))
        return name
