"""A step as a compiler may run it that fuses: what is cheap to make again where it is read is neither work nor memory.

An elementwise operation is free that makes no fewer bytes than it reads, and is read by others alone: what it makes
need not be stored, since what it reads is as small. A sum of two is not, and a product or convolution reads its inputs
from memory. Which of them a compiler fuses it decides itself.
"""

import dataclasses
from collections.abc import Mapping

from tfgc._step.step import VIEWS, Step, Tensor

_ELEMENTWISE = frozenset(
    ["Abs", "Add", "AddN", "AddV2", "BiasAdd", "Cast", "ConcatV2", "Elu", "EluGrad", "Equal", "Erf", "Exp", "Expm1",
     "FusedBatchNormGradV3", "FusedBatchNormV3", "Greater", "GreaterEqual", "LeakyRelu", "LeakyReluGrad", "Less",
     "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul", "Neg",
     "NotEqual", "Pack", "Pad", "PadV2", "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6", "Relu6Grad", "ReluGrad",
     "Rsqrt", "Select", "SelectV2", "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Sign", "Slice", "Softplus", "Split",
     "SplitV", "Sqrt", "Square", "SquaredDifference", "StridedSlice", "Sub", "Tanh", "TanhGrad", "Transpose"]
)  # fmt: skip
# What only puts bytes elsewhere.
_MOVES = frozenset(["ConcatV2", "Pack", "Pad", "PadV2", "Slice", "Split", "SplitV", "StridedSlice", "Transpose"])
_REDUCTIONS = frozenset(["BiasAddGrad", "Max", "Mean", "Min", "Sum"])


def sources(step: Step) -> Mapping[Tensor, tuple[Tensor, ...]]:
    """The buffers that free operations make, each with those that it is made of."""
    found: dict[Tensor, tuple[Tensor, ...]] = {}
    results = {step.buffer(tensor) for tensor in step.results}
    for i in step.order:
        op, makes = step.ops[i], step.makes[i]
        if not makes or op.type not in _ELEMENTWISE or op.is_stateful or results.intersection(makes):
            continue
        readers = {step.ops[j].type for b in makes for j in step.readers.get(b, ())}
        read = tuple(dict.fromkeys(source for b in step.reads[i] for source in found.get(b, (b,))))
        if readers <= _ELEMENTWISE | _REDUCTIONS and read and _bytes(step, read) <= _bytes(step, makes):
            found.update(dict.fromkeys(makes, read))
    return found


def moved(step: Step) -> frozenset[int]:
    """The free operations that put bytes elsewhere: what reads them later reads the parts that they are made of."""
    return frozenset(number for number, _ in sources(step) if step.ops[number].type in _MOVES)


def fused(step: Step) -> Step:
    """The step with free operations inside of those that read them."""
    free, ops = sources(step), {}
    for i in step.order:
        op = step.ops[i]
        inputs = tuple(dict.fromkeys(source for t in op.inputs for source in free.get(step.buffer(t), (t,))))
        is_free = any((i, k) in free for k in range(len(op.sizes)))
        if is_free or (op.type in VIEWS and inputs != op.inputs):
            ops[i] = dataclasses.replace(op, type="Fused", inputs=inputs, sizes=(0,) * len(op.sizes), work=0)
        else:
            ops[i] = dataclasses.replace(op, inputs=inputs)
    return dataclasses.replace(step, ops=ops)


def _bytes(step: Step, buffers: tuple[Tensor, ...]) -> int:
    return sum(map(step.size, buffers))
