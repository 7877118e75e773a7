"""The graph that plans are made for: nodes in one fixed order, as plain data.

Invariants, checked when a Graph is made: names are unique, and every node comes after the nodes whose outputs it reads.
A tensor is named by a `Ref`: the name of its node (or graph input) and the output's index. A *position* p is the place
before node p; the *cut* there is the set of tensors that exist by then and are still to be read (or are outputs of the
graph).
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, TypeVar

from tfgc._core.shown import Brief
from tfgc._core.tensors import Ref, Spec
from tfgc._errors import OptionError, TfgcError

_Derived = TypeVar("_Derived")


@dataclasses.dataclass(frozen=True, repr=False)
class Cost(Brief):
    """What one node saves, allocates and computes. Bytes are those of `Graph.batch_size` samples.

    Attributes:
        saved_tensors: Inputs and outputs of the node that its backward pass reads.
        differentiable_inputs: Inputs that get a gradient.
        forward_bytes: The most that its forward pass allocates, its outputs among it.
        backward_bytes: The most that its backward pass allocates, gradients of its inputs among it.
        flops, backward_flops: Floating-point operations of the two passes.
        obstacle: Why it cannot be run twice, or None.
    """

    saved_tensors: tuple[Ref, ...]
    differentiable_inputs: tuple[Ref, ...] = ()
    forward_bytes: int = 0
    backward_bytes: int = 0
    flops: int = 0
    backward_flops: int = 0
    obstacle: str | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Node(Brief):
    """One call of a layer or op.

    Attributes:
        name: The layer's name, or for an op such as `x + y` its kind (`ops.add`); later calls are `name:1`, `name:2`;
            inside a nested model `model/name`.
        kind: Its class, for people to read.
        inputs: The tensors that it reads: a tuple of `Ref`.
        outputs: A `Spec` for each tensor that it makes.
        cost: Its `Cost`, or None; then `Graph.cost` assumes that it saves all that it touches.
    """

    name: str
    inputs: tuple[Ref, ...]
    outputs: tuple[Spec, ...]
    kind: str = "node"
    cost: Cost | None = None

    @property
    def made(self) -> tuple[Ref, ...]:
        """The tensors that it makes."""
        return tuple(Ref(self.name, i) for i in range(len(self.outputs)))

    def describe(self) -> str:
        """One line that is the same for this node at any batch, in any process."""
        return f"{self.name} ({self.kind}) -> {', '.join(map(str, self.outputs))}"


@dataclasses.dataclass(frozen=True, repr=False)
class Graph(Brief):
    """Nodes in the order in which they run.

    Attributes:
        nodes: Tuple of `Node`.
        inputs: Mapping from the name of each graph input to its `Spec`.
        outputs: The `Ref` of each tensor that the graph returns.
        batch_size: Samples in a batch, where bytes are compared; None: bytes are those of one sample.

    Example:
        >>> a = Node("a", (Ref("x"),), (Spec((None, 8)),))
        >>> b = Node("b", (Ref("a"), Ref("x")), (Spec((None, 4)),))
        >>> graph = Graph((a, b), {"x": Spec((None, 2))}, (Ref("b"),))
        >>> graph.cut(1)
        (Ref(node='x', index=0), Ref(node='a', index=0))
        >>> graph.cut_bytes[1]
        40
    """

    nodes: tuple[Node, ...]
    inputs: dict[str, Spec]
    outputs: tuple[Ref, ...]
    batch_size: int | None = None

    def __post_init__(self) -> None:
        seen = set(self.inputs)
        for node in self.nodes:
            if node.name in seen:
                raise TfgcError(f"two nodes are called {node.name!r}")
            for ref in node.inputs:
                if ref.node not in seen:
                    raise TfgcError(f"node {node.name!r} reads {ref.node!r}, which does not come before it")
            seen.add(node.name)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getstate__(self) -> dict[str, Any]:
        # What is derived from the fields is not pickled: it can be derived again.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def once(self, make: Callable[["Graph"], _Derived]) -> _Derived:
        """`make(self)`, which is called once for each graph."""
        made = self.__dict__.setdefault("_made", {})
        if make not in made:
            made[make] = make(self)
        return made[make]

    @functools.cached_property
    def position(self) -> dict[str, int]:
        """Position of each node by name."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @functools.cached_property
    def specs(self) -> dict[Ref, Spec]:
        """`Spec` of every tensor by its `Ref`, in the order in which they are made."""
        specs = {Ref(name): spec for name, spec in self.inputs.items()}
        for node in self.nodes:
            specs.update(zip(node.made, node.outputs))
        return specs

    @functools.cached_property
    def last_use(self) -> dict[Ref, int]:
        """Position after which each tensor that is read is no longer needed."""
        last = {ref: i for i, node in enumerate(self.nodes) for ref in node.inputs}
        last.update((ref, len(self.nodes)) for ref in self.outputs)
        return last

    @functools.cached_property
    def sizes_known(self) -> bool:
        """Whether no tensor has an unknown dimension other than the batch."""
        return not any(spec.open for spec in self.specs.values())

    def bytes(self, ref: Ref) -> int:
        """Bytes of one tensor."""
        try:
            return self.specs[ref].bytes(self.batch_size)
        except OptionError as error:
            raise OptionError(f"{ref.node!r}: {error}") from None

    @functools.cached_property
    def costs(self) -> tuple[Cost, ...]:
        """The `Cost` of each node, as `cost` returns it."""
        return tuple(self.cost(node) for node in self.nodes)

    def cost(self, node: Node) -> Cost:
        """The `Cost` of one node. A node without one saves its inputs and outputs and computes one flop per element."""
        if node.cost is not None:
            return node.cost
        made = tuple(map(self.bytes, node.made))
        wants = tuple(r for r in dict.fromkeys(node.inputs) if r.node in self.position and self.floating(r))
        elements = sum(math.prod(d or self.batch_size or 1 for d in spec.shape) for spec in node.outputs)
        return Cost(
            saved_tensors=(*dict.fromkeys(node.inputs), *node.made),
            differentiable_inputs=wants,
            forward_bytes=sum(made),
            backward_bytes=sum(map(self.bytes, wants)),
            flops=elements,
            backward_flops=2 * elements,
        )

    def floating(self, ref: Ref) -> bool:
        """Whether a tensor can have a gradient."""
        return self.specs[ref].dtype.startswith(("float", "bfloat", "complex"))

    def cut(self, position: int) -> tuple[Ref, ...]:
        """The tensors alive before node `position` runs, oldest first."""
        alive = (ref for ref in self.specs if position <= self.last_use.get(ref, -1))
        return tuple(ref for ref in alive if self.position.get(ref.node, -1) < position)

    @functools.cached_property
    def cut_bytes(self) -> tuple[int, ...]:
        """Bytes of the cut at each position, from 0 to the number of nodes."""
        change = [0] * (len(self.nodes) + 2)
        for ref in self.specs:
            made = self.position.get(ref.node, -1)
            if self.last_use.get(ref, -1) > made:
                change[made + 1] += self.bytes(ref)
                change[self.last_use[ref] + 1] -= self.bytes(ref)
        return tuple(itertools.accumulate(change[:-1]))

    @functools.cached_property
    def node_bytes(self) -> tuple[int, ...]:
        """Bytes of the outputs of each node: a simple measure of what it costs to keep it."""
        return tuple(sum(map(self.bytes, node.made)) for node in self.nodes)
