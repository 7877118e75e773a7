"""What one call keeps and needs, read from the graph of its operations and of their gradients.

An operation is *late* if it depends on an upstream gradient (through data or
control edges) and *early* otherwise. What a late operation reads of the early ones is
what the forward pass keeps. Buffers, not tensors, are counted: an operation
that only renames its input makes none, an elementwise one takes over an input that dies there,
as TensorFlow's kernels do. Only static shapes are read; nothing is allocated.

Known weakness: a kernel's private workspace is not in the graph and counts
as nothing. Operations run in the order in which they were traced.
"""

import dataclasses

import tensorflow as tf

from tfgc._costs import batch_coupling, flop_counts, tensor_lists
from tfgc._costs.flop_counts import SHAPE_ONLY, VIEWS

_IN_PLACE = frozenset(
    [
        "Add",
        "AddV2",
        "AddN",
        "Sub",
        "Mul",
        "RealDiv",
        "DivNoNan",
        "BiasAdd",
        "Neg",
        "Exp",
        "Log",
        "Log1p",
        "Abs",
        "Sign",
    ]
    + ["Relu", "Relu6", "ReluGrad", "Relu6Grad", "LeakyRelu", "LeakyReluGrad", "Elu", "EluGrad", "Selu", "SeluGrad"]
    + ["Tanh", "TanhGrad", "Sigmoid", "SigmoidGrad", "Softplus", "SoftplusGrad", "Softsign", "Softmax", "LogSoftmax"]
    + ["Square", "SquaredDifference", "Sqrt", "SqrtGrad", "Rsqrt", "RsqrtGrad", "Reciprocal", "Erf", "Erfc", "Pow"]
    + ["Maximum", "Minimum", "SelectV2", "ClipByValue", "Floor", "Round", "LogicalAnd", "LogicalNot", "Xdivy", "Xlogy"]
)


@dataclasses.dataclass(frozen=True)
class Call:
    """The tensors of one traced call; `gradients` are those of its sources and of its trainable variables."""

    graph: object
    inputs: list
    variables: list
    outputs: list
    upstream: list
    gradients: list
    sources: list


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes and work of one call.

    Attributes:
        kept_inputs, kept_outputs: Positions of those that backward reads.
        internal: Bytes of each other buffer that backward reads.
        forward: Buffer bytes as they come (+) and go (-) in a forward pass that keeps nothing.
        keeping: The same in one that keeps what backward reads; what is kept never goes.
        backward: The same in the backward pass, after the upstream gradients and kept buffers.
        views: For each output the position of the input that it renames, or None.
        takes: Position of an input whose buffer the first output takes over, or None.
        passes: Positions of inputs whose gradient is the upstream gradient itself.
        flops, backward_flops: Floating-point operations.
        coupled: Whether a sample's result depends on others of the batch.
    """

    kept_inputs: tuple
    kept_outputs: tuple
    internal: tuple
    forward: tuple
    keeping: tuple
    backward: tuple
    views: tuple
    takes: int | None
    passes: tuple
    flops: int
    backward_flops: int
    coupled: bool


def footprint(call):
    """Return the `Footprint` of a traced call."""
    return _Reading(call).footprint()


class _Reading:
    def __init__(self, call):
        self._call = call
        self._roots = {}
        # Gradients of weights are counted apart: they are no activations.
        weights = [self._root(g) for g in call.gradients[len(call.sources) :] if isinstance(g, tf.Tensor)]
        self._sizes = {t.ref(): 0 for t in weights if t.ref() not in _refs(call.upstream)}
        operations = call.graph.get_operations()
        self._loops = tensor_lists.Loops(call.graph)
        # What TensorFlow folds into constants, and the variables themselves, cost a step nothing.
        late, constant = set(), set()
        upstream = _refs(call.upstream)
        for op in operations:
            if op.type == "Placeholder":
                late.update([op] if op.outputs[0].ref() in upstream else [])
            elif any(t.op in late for t in op.inputs) or any(c in late for c in op.control_inputs):
                late.add(op)
            elif all(t.op in constant for t in op.inputs):
                constant.add(op)
        idle = constant | {t.op for t in call.variables}
        wanted = [t for g in call.gradients if g is not None for t in tf.nest.flatten(g, expand_composites=True)]
        self._idle = idle
        self._gradients = wanted
        needed = _ancestors([*call.outputs, *wanted])
        computed = [op for op in operations if op in needed and op not in idle and op.type != "Placeholder"]
        self._late = [op for op in computed if op in late]
        self._early = [op for op in computed if op not in late]
        forward = _ancestors(call.outputs)
        self._forward = [op for op in self._early if op in forward]
        self._late_set = late

    def footprint(self):
        call = self._call
        inputs = [self._root(t) for t in call.inputs]
        outputs = [self._root(t) for t in call.outputs]
        kept = {}
        for op in self._late:
            if op.type not in SHAPE_ONLY:
                for t in op.inputs:
                    root = self._root(t)
                    # A shape is known to whoever knows the tensor: nothing runs again for it.
                    if root.op not in self._late_set and root.op not in self._idle and root.op.type not in SHAPE_ONLY:
                        kept[root.ref()] = self._bytes(root)
        at_input, at_output = _refs(inputs), _refs(outputs)
        workspaces = tuple(_workspace(op) for op in self._forward if _workspace(op))
        internal = {ref: n for ref, n in kept.items() if ref not in at_input and ref not in at_output and n}
        stays = {*at_output, *kept}
        upstream = [self._root(t) for t in call.upstream]
        gone = {**internal, **{t.ref(): self._bytes(t) for t in upstream}}
        return Footprint(
            kept_inputs=tuple(i for i, t in enumerate(inputs) if t.ref() in kept),
            kept_outputs=tuple(i for i, t in enumerate(outputs) if t.ref() in kept and t.ref() not in at_input),
            internal=(*internal.values(), *(workspaces if self._late else ())),
            forward=(*workspaces, *self._events(self._forward, {}, at_output)),
            keeping=(*workspaces, *self._events(self._early, {}, stays)),
            # Workspaces are there until the end of the backward pass.
            backward=self._events(self._late, gone, _refs(self._root(t) for t in self._gradients)),
            views=tuple(_find(inputs, root) for root in outputs),
            takes=self._taken(inputs, outputs),
            passes=self._passed(),
            flops=sum(map(flop_counts.flops, self._early)),
            backward_flops=sum(map(flop_counts.flops, self._late)),
            coupled=batch_coupling.couples(self._forward, call.inputs),
        )

    def _events(self, operations, there, stays):
        """Signed bytes of the buffers that come and go while `operations` run."""
        last = {}
        for i, op in enumerate(operations):
            if op.type not in SHAPE_ONLY:
                last.update((self._root(t).ref(), i) for t in op.inputs)
            for t in op.outputs:
                last.setdefault(self._root(t).ref(), i)
        ends = {}
        for ref, i in last.items():
            ends.setdefault(i, []).append(ref)
        alive, events = dict(there), []
        for i, op in enumerate(operations):
            for t in op.outputs:
                if _renamed(t) is not None:
                    continue
                taken = self._reusable(op, t, alive, stays, last, i)
                if taken is not None:
                    del alive[taken]
                elif self._bytes(t):
                    events.append(self._bytes(t))
                alive[t.ref()] = self._bytes(t)
            for ref in ends.get(i, ()):
                if ref in alive and ref not in stays:
                    size = alive.pop(ref)
                    events += [-size] if size else []
        return tuple(events)

    def _reusable(self, op, output, alive, stays, last, i):
        if op.type in _IN_PLACE:
            for t in op.inputs:
                ref = self._root(t).ref()
                if ref in alive and ref not in stays and last.get(ref) == i and alive[ref] == self._bytes(output):
                    return ref
        return None

    def _taken(self, inputs, outputs):
        """The input over whose buffer a chain of in-place operations writes the first output."""
        if len(outputs) != 1 or len({t.ref() for t in inputs}) != len(inputs):
            return None
        readers = {}
        for op in self._forward:
            for t in op.inputs if not op.outputs or _renamed(op.outputs[0]) is None else ():
                readers.setdefault(self._root(t).ref(), set()).add(op)
        at, found = outputs[0], None
        while at.op.type in _IN_PLACE and found is None:
            same = [
                r for r in map(self._root, at.op.inputs) if self._bytes(r) == self._bytes(at) and r.dtype == at.dtype
            ]
            same = [r for r in same if r.op not in self._idle and len(readers[r.ref()]) == 1]
            if not same:
                return None
            at = same[0]
            found = _find(inputs, at)
        return found

    def _passed(self):
        """Inputs whose gradient is an upstream gradient, handed on as it is."""
        upstream = _refs(self._call.upstream)
        given = zip(self._call.sources, self._call.gradients)
        handed = [s for s, g in given if isinstance(g, tf.Tensor) and self._root(g).ref() in upstream]
        return tuple(_find(self._call.inputs, source) for source in handed)

    def _root(self, tensor):
        key = tensor.ref()
        if key not in self._roots:
            source = _renamed(tensor)
            self._roots[key] = tensor if source is None else self._root(source)
        return self._roots[key]

    def _bytes(self, tensor):
        key = tensor.ref()
        if key not in self._sizes:
            self._sizes[key] = (
                self._loops.list_bytes(tensor) if tensor.dtype == tf.variant else tensor_lists.tensor_bytes(tensor)
            )
        return self._sizes[key]


def _workspace(op):
    """Bytes that a kernel keeps for its gradient without showing them as an output.

    On CPUs the pooling of oneDNN keeps the place of each maximum, in one byte for windows of up to 255.
    """
    if op.type != "MaxPool" or tf.config.list_physical_devices("GPU"):
        return 0
    return op.outputs[0].shape.num_elements() * (1 if max(op.get_attr("ksize")) < 16 else 4)


def _renamed(tensor):
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


def _ancestors(tensors):
    found, stack = set(), [t.op for t in tensors]
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack += [t.op for t in op.inputs]
    return found


def _refs(tensors):
    return {t.ref() for t in tensors}


def _find(tensors, wanted):
    return next((i for i, t in enumerate(tensors) if t.ref() == wanted.ref()), None)
