"""What a plan consists of: its segments, and what it promises. Plain data."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Optional, TypeAlias

from tfgc._core.graph import Graph
from tfgc._core.shown import Brief
from tfgc._errors import OptionError, PlanMismatchError

_MODES = ("keep", "recompute")
# Positions of start and end, and a mode, or the pieces of the replay
Piece: TypeAlias = tuple[int, int, "str | Sequence[Piece]"]
# What a node does.
Phase: TypeAlias = Literal["forward", "loss", "replay", "backward"]


@dataclasses.dataclass(frozen=True, repr=False)
class Segment(Brief):
    """Nodes that run, and run again, as one.

    Attributes:
        nodes: Their names, in the order in which they run.
        mode: `keep` (TensorFlow stores what backward needs) or `recompute`.
        offload: Whether its inputs wait for the replay in host memory; only if it is recomputed.
        inner: The plan by which it is split again on replay, or None. It covers these nodes, and its `model` is ().
        stored_bytes: Activations that it stores until its backward pass, beyond those of earlier segments; None where
            sizes are unknown, like the next three.
        inside_bytes: Activations that it would store if TensorFlow kept it whole.
        input_bytes: Activations that it would store if it were recomputed.
        work: Flops to run it again.
        obstacle: Why it cannot be run twice, or None.
        host_bytes: Bytes that it stores on the host, if `offload`; else None.

    Example:
        >>> print(Segment(("conv", "normalization", "relu")))
        conv ... relu (3 nodes)
    """

    nodes: tuple[str, ...]
    mode: str = "recompute"
    offload: bool = False
    inner: Optional["Segmentation"] = None
    stored_bytes: int | None = None
    inside_bytes: int | None = None
    input_bytes: int | None = None
    work: float | None = None
    obstacle: str | None = None
    host_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.nodes:
            raise OptionError("a segment needs at least one node")
        if self.mode not in _MODES:
            raise OptionError(f"a segment's mode is {' or '.join(_MODES)}, not {self.mode!r}")
        if self.offload and self.mode == "keep":
            raise OptionError("offload=True: a segment of mode 'keep' stores no checkpoint; leave offload at False")
        if self.inner is None:
            return
        if not isinstance(self.inner, Segmentation):
            raise OptionError(f"inner={self.inner!r} is not a Plan")
        if self.mode == "keep":
            raise OptionError("inner: a segment of mode 'keep' is not run again, so it cannot have an inner plan")
        if any(segment.offload for segment in self.inner.segments):
            raise OptionError("inner: a replay stores nothing on the host; leave offload at False in an inner plan")
        if self.inner.model:
            raise OptionError("inner: only the outermost plan records the model; give the inner one model=()")

    def __str__(self) -> str:
        ends = self.nodes[0] if len(self.nodes) == 1 else f"{self.nodes[0]} ... {self.nodes[-1]}"
        return f"{ends} ({len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''})"


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What a plan promises, by the simulator.

    Bytes are those of buffers, weights and optimizer slots left out, where nothing else is said.

    Attributes:
        peak_bytes: Most bytes at once in a step.
        node: The node that runs at that moment.
        phase: Its phase, as in `Prediction`.
        plain_bytes: The peak if nothing is recomputed.
        floor_bytes: The least peak of any plan of a graph: what one node alone needs. Of a plan of a step, its own.
        floor_node: That node.
        overhead: Work on top of the plain step's, as a fraction of it.
        least_overhead: No plan of a graph that has this peak has less overhead. Of a plan of a step, its own.
        needed_bytes: What the whole step needs on the device, weights and slots included: `needed_bytes` of
            `tfgc.estimate`, or what was measured with `confirm`. None where it is not known, like the next one.
        plain_needed_bytes: The same of the plain step.
        budget_bytes: The budget that the plan was made for, in bytes; None if there was none.
        ratio: Measured by simulated bytes of a step of the model, without variables; None if none was measured.
    """

    peak_bytes: int
    node: str
    phase: Phase
    plain_bytes: int
    floor_bytes: int
    floor_node: str
    overhead: float
    least_overhead: float
    needed_bytes: int | None = None
    plain_needed_bytes: int | None = None
    budget_bytes: int | None = None
    ratio: float | None = None

    def by_ratio(self, ratio: float | None) -> "Outlook":
        """The same with a measured ratio."""
        return dataclasses.replace(self, ratio=ratio)

    @property
    def cut_off(self) -> float:
        """The fraction of the plain peak that is saved."""
        return 1 - self.peak_bytes / self.plain_bytes if self.plain_bytes else 0.0

    @property
    def gap(self) -> float:
        """How far the peak is above the floor, as a fraction of the floor."""
        return self.peak_bytes / self.floor_bytes - 1 if self.floor_bytes else 0.0


@dataclasses.dataclass(frozen=True, repr=False)
class Segmentation(Brief):
    """The data of a `Plan`, which describes them."""

    segments: tuple[Segment, ...]
    strategy: str
    model: tuple[str, ...]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch_size: int | None = None
    outlook: Outlook | None = None
    operations: bool = False
    link: float | None = None

    def __post_init__(self) -> None:
        if self.link is not None and not self.link > 0:
            raise OptionError(f"link={self.link!r}: bytes per unit of work must be positive; None if not known")

    @property
    def is_nested(self) -> bool:
        """Whether a replay is itself split into segments."""
        return any(segment.inner is not None for segment in self.segments)


def segments_of(
    graph: Graph, pieces: Iterable[Piece], plan: Callable[[tuple[Segment, ...]], Segmentation]
) -> tuple[Segment, ...]:
    """The segments of these pieces; `plan` makes the plan of a replay."""
    made = []
    for start, end, how in pieces:
        nodes = graph.nodes[start:end]
        obstacles = [f"{n.name!r}: {n.cost.obstacle}" for n in nodes if n.cost is not None and n.cost.obstacle]
        if obstacles:
            how = "keep"
        made.append(
            Segment(
                nodes=tuple(node.name for node in nodes),
                mode="keep" if how == "keep" else "recompute",
                inner=None if isinstance(how, str) else plan(segments_of(graph, how, plan)),
                obstacle=obstacles[0] if obstacles else None,
            )
        )
    return tuple(made)


def check_coverage(graph: Graph, segments: Iterable[Segment], names: Sequence[str], done: set[str], whole: str) -> None:
    """Raise unless `segments` run each of `names` once, and after what it reads; `done` ran before."""
    known, left = set(names), set(names)
    for segment in segments:
        before = set(done)
        for name in segment.nodes:
            if name not in left:
                why = "is in it twice" if name in known else f"is not in the {whole.partition(' ')[0]}"
                raise PlanMismatchError(f"not a plan for this {whole}: node {name!r} {why}")
            for ref in graph.nodes[graph.position[name]].inputs:
                if ref.node not in done:
                    raise PlanMismatchError(f"not a valid plan: {name!r} would run before {ref.node!r}, which it reads")
            left.remove(name)
            done.add(name)
        if segment.inner is not None:
            check_coverage(graph, segment.inner.segments, segment.nodes, before, f"segment of a plan, {segment}")
    if left:
        raise PlanMismatchError(f"not a plan for this {whole}: it leaves out {next(n for n in names if n in left)!r}")
