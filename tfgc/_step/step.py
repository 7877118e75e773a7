"""A training step as plain data: its operations, the order in which they run, and the buffers that they share.

A step is what a rewrite takes and returns. Its operations have numbers: those of the trace keep theirs, copies get new
ones. Nothing here knows TensorFlow, so tests write steps by hand:

>>> step = Step({0: Op("x", "Placeholder", sizes=(400_000,)), 1: Op("y", "Relu", ((0, 0),), sizes=(400_000,))}, (0, 1))
>>> step.makes[1], step.reads[1]
(((1, 0),), ())

`x` belongs to the caller, so that it is no buffer of the step.
"""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

# The number of the operation that makes it, and which of its outputs it is.
Tensor: TypeAlias = tuple[int, int]

# Their output shares the buffer of their first input; that of IdentityN, of the input of the same index.
VIEWS = frozenset(
    ["Identity", "IdentityN", "Reshape", "StopGradient", "PreventGradient", "ExpandDims", "Squeeze", "CheckNumerics",
     "Bitcast", "EnsureShape"]
)  # fmt: skip
# Their outputs belong to variables, constants or the caller. They are read in place, and shared with copies.
NOT_OF_THE_STEP = frozenset(["ReadVariableOp", "Const", "Placeholder", "VarHandleOp"])
# What makes shapes known; a compiler knows them, and what follows from them and from constants.
_OF_SHAPES = frozenset(["Const", "Shape", "ShapeN", "Rank", "Size"])
# What takes long enough for an order of the rest to be made around it.
HEAVY = frozenset(
    ["Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "DepthwiseConv2dNative",
     "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter", "MatMul", "BatchMatMul",
     "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2",
     "MaxPoolGrad", "AvgPoolGrad", "FusedBatchNormV3", "FusedBatchNormGradV3", "While", "StatelessWhile",
     "PartitionedCall", "StatefulPartitionedCall"]
)  # fmt: skip
# Copies of a buffer to the host's memory and back, which a rewrite adds.
TO_HOST, FROM_HOST = "ToHost", "FromHost"
HOST_COPIES = frozenset([TO_HOST, FROM_HOST])
# Bytes below which a buffer is shared with the copies rather than planned: there are many, and they hold next to
# nothing.
SMALL = 32 * 1024
# The largest result that TensorFlow computes once for all steps if it follows from constants: by default the limit of
# its `ConstantFoldingOptions`. https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/common_runtime
FOLDED = 10 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """One operation of a step.

    Attributes:
        name: Unique in the step.
        type: TensorFlow's name of what it does, such as `Conv2D`.
        inputs: The tensors that it reads.
        controls: Numbers of the operations that must run before it.
        sizes: Bytes of each output; 0 where there are none to count.
        call: How many gradient calls had begun when it was traced.
        is_gradient: Whether an outermost gradient call made it: never dropped, never copied.
        is_stateful: Whether it may do or return something else when it runs again: never copied.
        work: What it takes to run it, in floating-point operations, as `_step.work` counts them.
        traced: Of a copy, the number of the operation of the trace that it runs again; of a copy to the host or back,
            of the one that made the buffer; -1 for what was traced.
        segment: Of a copy, which call recomputes which segment, and inside of a nested one which part of that; empty
            for what was traced.
    """

    name: str
    type: str
    inputs: tuple[Tensor, ...] = ()
    controls: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    call: int = 0
    is_gradient: bool = False
    is_stateful: bool = False
    work: int = 0
    traced: int = -1
    segment: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Step:
    """Operations and the order in which they run.

    Attributes:
        ops: By number.
        order: All numbers of `ops`, each behind those that it needs.
        results: What the step returns: alive to its end.
        calls: For each gradient call, in the order in which they began, whether it is outermost: whether no later call
            differentiates what it made.
        small: Bytes below which buffers are not planned.
        layers: By the path of a layer, or of one of its calls, the operation behind which each of these ends.
    """

    ops: Mapping[int, Op]
    order: tuple[int, ...]
    results: tuple[Tensor, ...] = ()
    calls: tuple[bool, ...] = ()
    small: int = SMALL
    layers: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def reordered(self, order: Iterable[int]) -> "Step":
        """The same operations in another order."""
        ops = {i: self.ops[i] for i in order}
        step = dataclasses.replace(self, ops=ops, order=tuple(ops))
        for known in ("_owners", "makes", "reads"):  # which no order changes
            step.__dict__[known] = getattr(self, known)
        return step

    @functools.cached_property
    def at(self) -> dict[int, int]:
        """The position of each operation in the order."""
        return {number: position for position, number in enumerate(self.order)}

    @functools.cached_property
    def _owners(self) -> dict[Tensor, Tensor]:
        owners: dict[Tensor, Tensor] = {}
        for number in self.order:
            op = self.ops[number]
            if op.type in VIEWS and op.inputs:
                for i in range(len(op.sizes)):
                    source = op.inputs[i if op.type == "IdentityN" else 0]
                    owners[number, i] = owners.get(source, source)
        return owners

    def buffer(self, tensor: Tensor) -> Tensor:
        """The tensor that owns the bytes of this one, behind views."""
        return self._owners.get(tensor, tensor)

    @functools.cached_property
    def known_by_shapes(self) -> frozenset[int]:
        """The operations whose results follow from shapes and constants alone, which compilers want to know of some."""
        found = set[int]()
        for number in self.order:
            op = self.ops[number]
            follows = bool(op.inputs) and not op.is_stateful and all(source in found for source, _ in op.inputs)
            if op.type in _OF_SHAPES or follows:
                found.add(number)
        return frozenset(found)

    def tensor_name(self, tensor: Tensor) -> str:
        """Its name, as operations of a GraphDef read it."""
        name = self.ops[tensor[0]].name
        return name if tensor[1] == 0 else f"{name}:{tensor[1]}"

    def size(self, tensor: Tensor) -> int:
        """Bytes of a tensor."""
        return self.ops[tensor[0]].sizes[tensor[1]]

    def is_planned(self, buffer: Tensor) -> bool:
        """Whether a buffer is the step's own, and large enough to be dropped and made again."""
        op = self.ops[buffer[0]]
        return op.sizes[buffer[1]] >= self.small and op.type not in NOT_OF_THE_STEP

    @functools.cached_property
    def makes(self) -> dict[int, tuple[Tensor, ...]]:
        """The planned buffers that each operation allocates."""
        found = {}
        for number, op in self.ops.items():
            found[number] = ()
            if op.sizes and max(op.sizes) >= self.small and op.type not in NOT_OF_THE_STEP:
                own = ((number, i) for i, size in enumerate(op.sizes) if size >= self.small)
                found[number] = tuple(tensor for tensor in own if tensor not in self._owners)
        return found

    @functools.cached_property
    def reads(self) -> dict[int, tuple[Tensor, ...]]:
        """The planned buffers that each operation reads, each once."""
        return {
            number: tuple(dict.fromkeys(b for b in map(self.buffer, op.inputs) if self.is_planned(b)))
            for number, op in self.ops.items()
        }

    @functools.cached_property
    def readers(self) -> dict[Tensor, list[int]]:
        """The operations that read each planned buffer, in order."""
        found = defaultdict(list)
        for number in self.order:
            for buffer in self.reads[number]:
                found[buffer].append(number)
        return found
