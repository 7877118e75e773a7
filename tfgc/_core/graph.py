"""The graph that plans are made of: nodes in one fixed order, as plain data.

Invariants, checked when a Graph is made: names are unique, and every node
comes after the nodes whose outputs it reads. A tensor is named by a `Ref`: the
name of its node (or graph input) and the output's index. A *position* p is the
place before node p; the *cut* there is the set of tensors that exist by then
and are still to be read (or are outputs of the graph).
"""

import dataclasses
import functools
import itertools
import math
import re
from typing import NamedTuple

from tfgc._errors import OptionError, TfgcError


class Ref(NamedTuple):
    """One output of a node, or a graph input (index 0)."""

    node: str
    index: int = 0


@dataclasses.dataclass(frozen=True)
class Spec:
    """Shape and dtype of a tensor; the first dimension is None for the batch.

    `varies` means that each None, the first one included, depends on the values in the batch.
    """

    shape: tuple
    dtype: str = "float32"
    varies: bool = False

    def bytes(self, batch_size=None):
        """Bytes of the tensor, or of one sample of it without `batch_size`.

        Raises:
            OptionError: If a dimension other than the batch is unknown.
        """
        if self.varies:
            raise OptionError(
                f"it makes a tensor of shape {self.shape}, whose unknown sizes depend on the values in the batch, so "
                "its bytes cannot be known ahead. Give it a fixed size, or apply it to the data before the model; "
                "strategy='uniform' and 'manual' need no sizes"
            )
        if self.open:
            raise OptionError(
                f"a tensor has the shape {self.shape}, of which more than the batch is unknown, and tfgc "
                "does not guess sizes; name them with tfgc.plan(model, input_shapes={input name: shape without batch}) "
                "or example=batch"
            )
        batch = 1 if batch_size is None else batch_size
        return math.prod(batch if d is None else d for d in self.shape) * itemsize(self.dtype)

    @property
    def open(self):
        """Whether its bytes cannot be told, even of one sample."""
        return self.varies or None in self.shape[1:]

    def __str__(self):
        return f"{self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def itemsize(dtype):
    """Bytes of one element of a dtype, given by name.

    A string counts as its 24-byte handle, TensorFlow's `tstring` (tsl/platform/ctstring_internal.h): that is all that
    the allocator is asked for. Text of more than 22 bytes lies on the heap besides, where the allocator sees nothing.
    """
    if dtype == "bool":
        return 1
    if dtype == "string":
        return 24
    bits = re.search(r"\d+", dtype)
    if bits is None:
        raise OptionError(f"the size of a {dtype} element is not known")
    return max(1, int(bits[0]) // 8)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one node keeps, needs and takes. Bytes are those of `Graph.batch_size` samples.

    The three courses are signed byte counts of buffers that come (+) and go (-)
    while the node runs, its inputs and what is kept not among them.

    Attributes:
        keeps: Inputs and own outputs that its backward pass reads.
        internal: Bytes of each other buffer that its backward pass reads.
        forward: Course of a forward pass that keeps nothing; its outputs stay.
        keeping: Course of one that keeps what the backward pass reads.
        backward: Course of the backward pass; upstream gradients and internal buffers may go.
        wants: Inputs that get a gradient.
        passes: Those of them whose gradient is the upstream gradient itself, not a new buffer.
        views: For each output the earlier tensor that it merely renames, or None.
        takes: An input whose buffer the output takes over where nobody else reads it, or None.
        gradient_bytes: Bytes of the gradients of its weights.
        differentiable: Whether it has a backward pass at all.
        flops, backward_flops: Floating-point operations of the two passes.
        seconds, backward_seconds: Measured time of the two passes, or None.
        obstacle: Why it cannot be run twice, or None.
        coupled: Whether a sample's result depends on other samples of the batch.
    """

    keeps: tuple
    internal: tuple = ()
    forward: tuple = ()
    keeping: tuple = ()
    backward: tuple = ()
    wants: tuple = ()
    passes: tuple = ()
    views: tuple = ()
    takes: Ref | None = None
    gradient_bytes: int = 0
    differentiable: bool = True
    flops: int = 0
    backward_flops: int = 0
    seconds: float | None = None
    backward_seconds: float | None = None
    obstacle: str | None = None
    coupled: bool = False


@dataclasses.dataclass(frozen=True)
class Node:
    """One call of a layer or op.

    Attributes:
        name: The layer's name, or for an op such as `x + y` its kind (`ops.add`);
            later calls are `name:1`, `name:2`; inside a nested model `model/name`.
        kind: Its class, for people to read.
        inputs: The tensors it reads: a tuple of `Ref`.
        outputs: A `Spec` for each tensor it makes.
        declared: The same as the model declares them, where `outputs` are for
            one batch and input size; by default `outputs`.
        cost: Its `Cost`, or None; then `Graph.cost` keeps all that it touches.
    """

    name: str
    inputs: tuple
    outputs: tuple
    kind: str = "node"
    declared: tuple = ()
    cost: Cost | None = None

    def describe(self):
        """One line that is the same for this node at any batch, in any process."""
        return f"{self.name} ({self.kind}) -> {', '.join(map(str, self.declared or self.outputs))}"


@dataclasses.dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they run.

    Attributes:
        nodes: Tuple of `Node`.
        inputs: Mapping from the name of each graph input to its `Spec`.
        outputs: The `Ref` of each tensor that the graph returns.
        batch_size: Samples in a batch, where bytes are compared; or None, and
            bytes are those of one sample.
        whole_step: Whether the gradient of a node's weights counts while its backward
            pass runs, or activations alone.
        loss: Course of the loss and its gradient (see `Cost`), the outputs not among them.

    Example:
        >>> a = Node("a", (Ref("x"),), (Spec((None, 8)),))
        >>> b = Node("b", (Ref("a"), Ref("x")), (Spec((None, 4)),))
        >>> graph = Graph((a, b), {"x": Spec((None, 2))}, (Ref("b"),))
        >>> graph.cut(1)
        (Ref(node='x', index=0), Ref(node='a', index=0))
        >>> graph.cut_bytes[1]
        40
    """

    nodes: tuple
    inputs: dict
    outputs: tuple
    batch_size: int | None = None
    whole_step: bool = False
    loss: tuple = ()

    def __post_init__(self):
        seen = set(self.inputs)
        for node in self.nodes:
            if node.name in seen:
                raise TfgcError(f"two nodes are called {node.name!r}")
            for ref in node.inputs:
                if ref.node not in seen:
                    raise TfgcError(f"node {node.name!r} reads {ref.node!r}, which does not come before it")
            seen.add(node.name)

    def __len__(self):
        return len(self.nodes)

    @functools.cached_property
    def position(self):
        """Position of each node by name."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @functools.cached_property
    def specs(self):
        """`Spec` of every tensor by its `Ref`, in the order they are made."""
        specs = {Ref(name): spec for name, spec in self.inputs.items()}
        for node in self.nodes:
            specs.update((Ref(node.name, i), spec) for i, spec in enumerate(node.outputs))
        return specs

    @functools.cached_property
    def last_use(self):
        """Position after which each tensor that is read is no longer needed."""
        last = {ref: i for i, node in enumerate(self.nodes) for ref in node.inputs}
        last.update((ref, len(self.nodes)) for ref in self.outputs)
        return last

    @functools.cached_property
    def sizes_known(self):
        """Whether no tensor has an unknown dimension besides the batch."""
        return not any(spec.open for spec in self.specs.values())

    def bytes(self, ref):
        """Bytes of one tensor."""
        try:
            return self.specs[ref].bytes(self.batch_size)
        except OptionError as error:
            raise OptionError(f"{ref.node!r}: {error}") from None

    @functools.cached_property
    def costs(self):
        """The `Cost` of each node; one without keeps its inputs and outputs and computes one flop an element."""
        return tuple(self.cost(node) for node in self.nodes)

    def cost(self, node):
        """The `Cost` of one node, or what stands for it."""
        if node.cost is not None:
            return node.cost
        outputs = tuple(Ref(node.name, i) for i in range(len(node.outputs)))
        made = tuple(self.bytes(ref) for ref in outputs)
        wants = tuple(r for r in dict.fromkeys(node.inputs) if r.node in self.position and self.floating(r))
        elements = sum(math.prod(d or self.batch_size or 1 for d in spec.shape) for spec in node.outputs)
        return Cost(
            keeps=(*dict.fromkeys(node.inputs), *outputs),
            forward=made,
            keeping=made,
            backward=tuple(self.bytes(ref) for ref in wants),
            wants=wants,
            flops=elements,
            backward_flops=2 * elements,
        )

    def floating(self, ref):
        """Whether a tensor can have a gradient."""
        return self.specs[ref].dtype.startswith(("float", "bfloat", "complex"))

    def cut(self, position):
        """The tensors alive before node `position` runs, oldest first."""

        def made(ref):
            return self.position.get(ref.node, -1)

        return tuple(ref for ref in self.specs if made(ref) < position <= self.last_use.get(ref, -1))

    @functools.cached_property
    def cut_bytes(self):
        """Bytes of the cut at each position, from 0 to the number of nodes."""
        change = [0] * (len(self.nodes) + 2)
        for ref in self.specs:
            made = self.position.get(ref.node, -1)
            if self.last_use.get(ref, -1) > made:
                change[made + 1] += self.bytes(ref)
                change[self.last_use[ref] + 1] -= self.bytes(ref)
        return tuple(itertools.accumulate(change[:-1]))

    @functools.cached_property
    def node_bytes(self):
        """Bytes that each node puts out: the simple cost of keeping it."""
        return tuple(sum(self.bytes(Ref(n.name, i)) for i in range(len(n.outputs))) for n in self.nodes)
