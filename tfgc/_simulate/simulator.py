"""Predict memory and work of one training step: the one judge of every plan.

The events of the step (`step_events`) are gone through in order. A buffer is alive from the node that
makes it to the last event that reads it. Gradients on their way do not depend on the plan;
`Buffers` has walked them.
"""

import dataclasses

from tfgc._simulate import allocation
from tfgc._simulate.step_events import StepEvents


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a step will need.

    Attributes:
        peak_bytes: Most bytes at once, in the whole step.
        activation_bytes: The same without weights, their gradients and optimizer slots: what a plan can change.
        fixed_bytes: Weights and optimizer slots, there all the time.
        allocated_bytes: What TensorFlow's allocator should report as the peak: it hands out chunks
            that are larger than what is asked for. From `estimate` alone, else None.
        node: The node that runs at the peak.
        phase: What it does there: `forward`, `replay`, `loss`, `backward`, or `return` (of a compiled segment).
        work: Cost of the step in `unit`, replays included.
        plain_work: The same if nothing is recomputed.
        unit: `s` if every node was timed, else `flop`.
        runs: How often each node runs forward.
        timeline: Triples (work so far, bytes, node) at every event.
    """

    peak_bytes: int
    activation_bytes: int
    node: str
    phase: str
    work: float
    plain_work: float
    unit: str
    runs: dict
    timeline: tuple
    fixed_bytes: int = 0
    allocated_bytes: int | None = None

    @property
    def overhead(self):
        """Part of the plain step's work that comes on top."""
        return self.work / self.plain_work - 1 if self.plain_work else 0.0

    @property
    def needed_bytes(self):
        """What a budget is compared with: both what is asked for and what the allocator makes of it fit."""
        return max(self.peak_bytes, self.allocated_bytes or 0)


def predict(graph, plan, mode="graph"):
    """Predict one training step of `graph` by `plan`, weights left out.

    Args:
        graph: A `Graph`; nodes without a cost keep all that they touch.
        plan: A `Plan` for it.
        mode: `graph`, or `compiled` for compiled segments called from Python.

    Returns:
        A `Prediction`.
    """
    plan.check(graph)
    return _summed(StepEvents(graph, plan.segments, mode))


def estimate(graph, plan, fixed, mode="graph"):
    """Predict the whole step: `fixed` bytes of weights and slots, gradients of weights, activations."""
    plan.check(graph)
    walk = StepEvents(graph.counting(whole_step=True), plan.segments, mode)
    step = _summed(walk)
    return dataclasses.replace(
        step,
        peak_bytes=step.peak_bytes + fixed,
        activation_bytes=predict(graph.counting(whole_step=False), plan, mode).peak_bytes,
        fixed_bytes=fixed,
        allocated_bytes=allocation.allocated(walk) + fixed,
    )


def _summed(walk):
    """Go through the events with what is alive at each, and sum up."""
    last = {}
    for when, event in enumerate(walk.events):
        last.update(dict.fromkeys([*event.makes, *event.reads], when))
    ends = {}
    for buffer, when in last.items():
        ends.setdefault(when, []).append(buffer)
    alive, work, peak, timeline, runs = 0, 0, (-1, None), [], {}
    for when, event in enumerate(walk.events):
        total, name = alive + event.need, walk.graph.nodes[event.position].name
        peak = max(peak, (total, when), key=lambda x: x[0])
        timeline.append((work, total, name))
        work += event.work
        if event.phase in ("forward", "replay"):
            runs[name] = runs.get(name, 0) + 1
        alive += sum(walk.sizes[m] for m in event.makes) - sum(walk.sizes[m] for m in ends.get(when, ()))
    at = walk.events[peak[1]]
    differentiable = [gradients is not None for gradients in walk.buffers.gradients]
    return Prediction(
        peak_bytes=peak[0],
        activation_bytes=peak[0],
        node=walk.graph.nodes[at.position].name,
        phase=at.phase,
        work=work,
        plain_work=sum(forward + back * has for (forward, back), has in zip(walk.work, differentiable)),
        unit=walk.unit,
        runs=runs,
        timeline=tuple(timeline),
    )
