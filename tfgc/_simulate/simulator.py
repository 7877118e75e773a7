"""What a training step will need: predicted of a plan of a graph, event by event (`step_events`), or of a traced step.

A buffer is alive from the event that makes it to the last one that reads it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfgc._core import timelines
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._core.segments import Phase
from tfgc._core.shown import Shown
from tfgc._simulate.step_events import StepEvents
from tfgc._units import format_bytes, format_percent


@dataclasses.dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """What a step will need.

    Attributes:
        peak_bytes: Most bytes at once, counted in buffers. From `tfgc.estimate` those of the whole step: weights, their
            gradients, optimizer slots, the batch and activations.
        activation_bytes: The peak of what the step itself makes.
        node: The node that runs at the peak.
        phase: What it does there: `forward`, `replay`, `loss` or `backward`.
        work: Floating-point operations of the step, replays included.
        plain_work: The same if nothing is recomputed.
        runs: How often each node runs forward.
        timeline: Triples (work so far, bytes, node) at every event.
        fixed_bytes: Bytes of weights and optimizer slots, which are there all the time.
        host_bytes: What the host stores at most.
    """

    peak_bytes: int
    activation_bytes: int
    node: str
    phase: Phase
    work: float
    plain_work: float
    runs: dict[str, int]
    timeline: tuple[tuple[float, int, str], ...]
    fixed_bytes: int = 0
    host_bytes: int = 0

    @property
    def overhead(self) -> float:
        """Work on top of the plain step's, as a fraction of it."""
        return self.work / self.plain_work - 1 if self.plain_work else 0.0

    @property
    def needed_bytes(self) -> int:
        """What the whole step needs on the device, which budgets are compared with and lines about plans say."""
        return self.peak_bytes

    def plot(self) -> Any:
        """Draw the memory of the step over its work, by matplotlib.

        Returns:
            The matplotlib axes: `prediction.plot().figure.savefig("step.png")`.

        Raises:
            TfgcError: If matplotlib is not installed.
        """
        held = self.peak_bytes - self.activation_bytes
        lines = {"buffers": [(work, held + count) for work, count, _ in self.timeline]}
        levels = {"weights and slots": self.fixed_bytes}
        title = self._shown()[0].removeprefix("of ")
        return timelines.draw(title, lines, "work done in one step", "flop", levels)

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        more = f"{format_percent(self.overhead)} more work" if self.overhead else "plain"
        rows = {"weights and slots": self.fixed_bytes, "activations at their peak": self.activation_bytes}
        cells = [*((name, format_bytes(count)) for name, count in rows.items()), ("at the peak", self.node, self.phase)]
        return f"of one step: needs {format_bytes(self.needed_bytes)} ({more})", (), cells


def predict(graph: Graph, plan: Plan | None) -> Prediction:
    """Predict one training step of `graph` by `plan`, or the plain one, weights and optimizer slots left out.

    Nodes without a cost keep all that they touch.
    """
    plan = Plan.from_cuts(graph, [], strategy="keep_all") if plan is None else plan
    plan.check(graph)
    step = StepEvents(graph, plan.segments, plan.link)
    nodes, sizes = graph.nodes, step.sizes
    alive, peak, at_peak = 0, -1, step.events[0]
    work: float = 0
    timeline: list[tuple[float, int, str]] = []
    runs: dict[str, int] = {}
    for event, freed in zip(step.events, step.freed):
        total, name = alive + event.extra_bytes, nodes[event.position].name
        if total > peak:
            peak, at_peak = total, event
        timeline.append((work, total, name))
        work += event.work
        if event.phase in ("forward", "replay"):
            runs[name] = runs.get(name, 0) + 1
        alive += sum(sizes[buffer] for buffer in event.makes) - sum(sizes[buffer] for buffer in freed)
    gradients = step.buffers.gradient_bytes_at
    backward = sum(cost.backward_flops for cost, count in zip(graph.costs, gradients) if count is not None)
    return Prediction(
        peak_bytes=peak,
        activation_bytes=peak,
        node=nodes[at_peak.position].name,
        phase=at_peak.phase,
        work=work,
        plain_work=sum(cost.flops for cost in graph.costs) + backward,
        runs=runs,
        timeline=tuple(timeline),
        host_bytes=step.host_bytes,
    )
