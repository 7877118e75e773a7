"""Predict memory and work of one training step: the one judge of every plan.

The simulator goes through the events of the step (`step_events`) in order. A buffer is alive from the event that makes
it to the last one that reads it. How cotangents flow does not depend on the plan; `Buffers` holds it.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from tfgc._core import timelines
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._core.segments import Phase
from tfgc._core.shown import Shown
from tfgc._simulate import allocation
from tfgc._simulate.step_events import StepEvents
from tfgc._units import format_bytes, format_percent

# What a plan may need on top, as a share. Of XLA's heap: of 24 plans within budgets that were compiled for a GPU, 9
# needed more than predicted, by up to 3 %, and plans of other networks more than that.
_MORE_OF_HEAP = 0.05
# Of all buffers, or the allocator's chunks in the worst of its states: TensorFlow's executor takes operations in
# another order in each step. Of 40 plans for ten networks, 5 needed over 3 % more, by up to 6.6 %
# (scripts/fit_budgets.py).
_MORE_OF_CHUNKS = 0.03


@dataclasses.dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """What a step will need.

    Attributes:
        peak_bytes: Most bytes at once, counted in buffers. From `tfgc.estimate` those of the whole step: weights, their
            gradients, optimizer slots and activations.
        activation_bytes: The part of it that a plan can change: the peak without weights, their gradients and optimizer
            slots.
        fixed_bytes: Bytes of weights and optimizer slots, which are there all the time. So is the batch of a step that
            is traced, which is part of `peak_bytes` alone.
        allocated_bytes: The peak of the whole step that TensorFlow's allocator should report: it hands out chunks that
            are larger than requested. Under XLA, which has none, the heap that it lays out beside weights and
            slots, with the gaps between buffers. None for a step that is traced, of which live buffers are summed.
        most_allocated_bytes: The most that it should report, with the chunks of the weights: of several steps, or if
            the plan recomputes, from several states that a process may have left the allocator in, which decide where
            buffers go. Such a plan has 3 % more of this, or of all buffers if they are more, and 5 % for XLA, weights
            and slots apart: a graph, or a compiled segment, runs in another order in each step, and predictions may
            be too low. None where only one step is simulated.
        node: The node that runs at the peak.
        phase: What it does there: `forward`, `replay`, `loss`, `backward`, or `return` (of a compiled segment).
        work: Cost of the step in `unit`, replays included.
        plain_work: The same if nothing is recomputed.
        unit: `s` if every node was timed, else `flop`.
        runs: How often each node runs forward.
        timeline: Triples (work so far, bytes, node) at every event.
        host_bytes: What the host stores at most.
    """

    peak_bytes: int
    activation_bytes: int
    node: str
    phase: Phase
    work: float
    plain_work: float
    unit: str
    runs: dict[str, int]
    timeline: tuple[tuple[float, int, str], ...]
    fixed_bytes: int = 0
    allocated_bytes: int | None = None
    most_allocated_bytes: int | None = None
    host_bytes: int = 0

    @property
    def overhead(self) -> float:
        """Work on top of the plain step's, as a fraction of it."""
        return self.work / self.plain_work - 1 if self.plain_work else 0.0

    @property
    def needed_bytes(self) -> int:
        """What the whole step needs on the device, which budgets are compared with and lines about plans say."""
        most = self.allocated_bytes if self.most_allocated_bytes is None else self.most_allocated_bytes
        return max(self.peak_bytes, most or 0)

    def plot(self) -> Any:
        """Draw the memory of the step over its work, by matplotlib.

        Returns:
            The matplotlib axes: `prediction.plot().figure.savefig("step.png")`.

        Raises:
            TfgcError: If matplotlib is not installed.
        """
        lines = {"buffers": [(work, self.fixed_bytes + count) for work, count, _ in self.timeline]}
        levels = {"needed, as the allocator hands it out": self.needed_bytes, "weights and slots": self.fixed_bytes}
        title = self._shown()[0].removeprefix("of ")
        return timelines.draw(title, lines, "work done in one step", self.unit, levels)

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        more = f"{format_percent(self.overhead)} more work" if self.overhead else "plain"
        rows = {"weights and slots": self.fixed_bytes, "activations at their peak": self.activation_bytes}
        cells = [*((name, format_bytes(count)) for name, count in rows.items()), ("at the peak", self.node, self.phase)]
        return f"of one step: needs {format_bytes(self.needed_bytes)} ({more})", (), cells


def predict(graph: Graph, plan: Plan | None, mode: str = "graph") -> Prediction:
    """Predict one training step of `graph` by `plan`, or the plain one, weights and optimizer slots left out.

    Nodes without a cost keep all that they touch. Mode `compiled` is that of compiled segments called from Python.
    """
    plan = _checked(graph, plan)
    return _summed(StepEvents(graph, plan.segments, mode, plan.link))


def estimate(graph: Graph, plan: Plan | None, fixed: int, mode: str = "graph") -> Prediction:
    """Predict the whole step: `fixed` bytes of weights and slots, gradients of weights, activations."""
    plan = _checked(graph, plan)
    events = StepEvents(graph.counting(whole_step=True), plan.segments, mode, plan.link)
    step = _summed(events)
    fixed += graph.resident_bytes(_recomputed(plan))
    if graph.xla:
        allocated = most = max(step.peak_bytes, allocation.heap_bytes(events))
    else:
        allocated, most = allocation.peaks_allocated(events)
    most = _with_margin(max(step.peak_bytes, most), step, graph.xla)
    return dataclasses.replace(
        step,
        peak_bytes=step.peak_bytes + fixed,
        activation_bytes=predict(graph.counting(whole_step=False), plan, mode).peak_bytes,
        fixed_bytes=fixed,
        allocated_bytes=allocated + fixed,
        most_allocated_bytes=most + fixed,
    )


def fits(graph: Graph, plan: Plan, room: int, mode: str = "graph") -> bool:
    """Whether the whole step by `plan` needs at most `room` bytes besides weights and optimizer slots."""
    # As `needed_bytes` of `estimate` says, and found sooner: no step is replayed after one that needs more.
    plan.check(graph)
    events = StepEvents(graph.counting(whole_step=True), plan.segments, mode, plan.link)
    room -= graph.resident_bytes(_recomputed(plan))
    most = map(allocation.heap_bytes, [events]) if graph.xla else allocation.needs(events)
    step = _summed(events)
    needs = itertools.chain([step.peak_bytes], most)
    return all(_with_margin(need, step, graph.xla) <= room for need in needs)


def _checked(graph: Graph, plan: Plan | None) -> Plan:
    """A plan for this graph; None stands for the one that keeps everything."""
    plan = Plan.from_cuts(graph, [], strategy="keep_all") if plan is None else plan
    plan.check(graph)
    return plan


def _recomputed(plan: Plan) -> set[str]:
    return {name for segment in plan.segments if segment.mode == "recompute" for name in segment.nodes}


def _with_margin(most: int, step: Prediction, xla: bool) -> int:
    """The most that a step may need."""
    return round(most * (1 + (_MORE_OF_HEAP if xla else _MORE_OF_CHUNKS))) if step.work > step.plain_work else most


def allocated_bytes(step: Prediction) -> int:
    """The `allocated_bytes` of a step of `estimate`; of one that is traced its live buffers."""
    return step.peak_bytes if step.allocated_bytes is None else step.allocated_bytes


def _summed(step: StepEvents) -> Prediction:
    """Go through the events with the bytes alive at each, and sum up."""
    nodes, sizes = step.graph.nodes, step.sizes
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
        alive += sum(sizes[buffer] for buffer in (*event.makes, *event.results))
        alive -= sum(sizes[buffer] for buffer in freed)
    differentiable = [gradient_bytes is not None for gradient_bytes in step.buffers.gradient_bytes_at]
    return Prediction(
        peak_bytes=peak,
        activation_bytes=peak,
        node=nodes[at_peak.position].name,
        phase=at_peak.phase,
        work=work,
        plain_work=sum(node.forward + has * node.backward for node, has in zip(step.work, differentiable)),
        unit=step.unit,
        runs=runs,
        timeline=tuple(timeline),
        host_bytes=step.host_bytes,
    )
