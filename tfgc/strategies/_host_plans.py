"""Plans whose segments keep their inputs on the device or on the host: the cheapest of them within two budgets.

A vertex is a state of `FlatPlans`. Its labels have the bytes that come back from the host while what follows is
differentiated, bytes held on the device, bytes on the host, and work. All labels of a vertex are extended at once.

Each copy to the host has to be done when its segment has run, so that the link keeps up with the forward pass. What
comes back counts during the backward pass of the segment after it, and its copy waits for no other one. The simulator,
which counts event by event, judges the plans.
"""

from typing import NamedTuple

import numpy as np

from tfgc._simulate.work import node_work
from tfgc.strategies._flat_plans import FlatPlans, Path
from tfgc.strategies._host_labels import Labels, Pruning, joined
from tfgc.strategies._host_memory import HostMemory


class _Vertex(NamedTuple):
    """A state, and whether nodes that are kept follow the segment whose inputs come back to it from the host."""

    state: int
    after_kept: bool


class HostPlans:
    """Searches `FlatPlans` made with `host=True`; if `hidden`, only those with copies that no replay waits for."""

    def __init__(self, plans: FlatPlans, host: HostMemory, hidden: bool = False) -> None:
        self.plans, self._hidden = plans, hidden
        self.pruning = Pruning(host_counts=host.budget is not None)
        self._host_budget = np.inf if host.budget is None else host.budget
        self._work_per_byte = 0.0 if host.link is None else 1 / host.link
        self._position = np.array([state.position for state in plans.states])
        works = node_work(plans.graph)
        self._forward = np.concatenate([[0.0], np.cumsum([work.forward for work in works])])
        self._backward = np.concatenate([[0.0], np.cumsum([work.backward for work in works])])

    def cheapest(self, budget: int) -> Path | None:
        """The path of least work within `budget` bytes on the device; None if nothing fits."""
        waiting: list[dict[_Vertex, list[Labels]]] = [{} for _ in range(len(self.plans.graph) + 1)]
        zero = np.zeros(1)
        waiting[0][_Vertex(0, False)] = [Labels(zero, zero, zero, zero, np.full((1, 3), -1))]
        done: list[tuple[_Vertex, Labels]] = []
        for position in waiting[:-1]:
            for vertex, parts in position.items():
                labels = self.pruning.unbeaten(joined(parts))
                done.append((vertex, labels))
                self._extend(len(done) - 1, vertex, labels, budget, waiting)
        ends = []
        for vertex, parts in waiting[-1].items():
            labels = self.pruning.unbeaten(joined(parts))
            coming = labels.in_flight * (not vertex.after_kept)
            wait = coming * self._work_per_byte
            fits = labels.device + self.plans.ends[vertex.state] + coming <= budget
            if self._hidden:
                fits &= wait == 0
            if fits.any():
                work = np.where(fits, labels.work + wait, np.inf)
                best = int(work.argmin())
                ends.append((float(work[best]), tuple(map(int, labels.source[best]))))
        if not ends:
            return None
        path, (number, label, row) = [], min(ends)[1]
        while number >= 0:
            vertex, labels = done[number]
            path.append((vertex.state, row))
            number, label, row = map(int, labels.source[label])
        return path[::-1]

    def peak(self, path: Path) -> int:
        """The peak of a path's plan on the device in bytes."""
        held = peak = 0
        in_flight, after_kept = 0, False
        for state, row in path:
            steps = self.plans.steps[state]
            kept = bool(steps.kept[row])
            coming = in_flight if kept or not after_kept else 0
            peak = max(peak, held + max(steps.need[row], steps.backward[row] + coming))
            held += steps.added[row]
            in_flight, after_kept = (in_flight if kept else int(steps.host[row])), kept
            end = int(steps.target[row])
        return int(max(peak, held + self.plans.ends[end] + (0 if after_kept else in_flight)))

    def least_peak(self, low: int, high: int) -> int:
        """About the least budget from `low` to `high` that some plan is within, found to 1 %."""
        while high > 1.01 * low:
            middle = int((low * high) ** 0.5)
            low, high = (middle + 1, high) if self.cheapest(middle) is None else (low, middle)
        return high

    def _extend(
        self, number: int, vertex: _Vertex, labels: Labels, budget: int, waiting: list[dict[_Vertex, list[Labels]]]
    ) -> None:
        """Add what each step makes of the labels of a vertex to those that wait for its target."""
        steps, start = self.plans.steps[vertex.state], self.plans.states[vertex.state].position
        ends, nothing = self._position[steps.target], np.zeros(len(labels.work))
        usable = budget - np.maximum(steps.need, steps.backward) >= labels.device.min()
        usable &= steps.host * self._work_per_byte <= self._forward[ends] - self._forward[start]
        hides = steps.work + self._backward[ends] - self._backward[start]
        for row in np.flatnonzero(usable).tolist():
            kept, host = bool(steps.kept[row]), int(steps.host[row])
            coming = labels.in_flight if kept or not vertex.after_kept else nothing
            fits = labels.device + np.maximum(steps.need[row], steps.backward[row] + coming) <= budget
            fits &= labels.host + host <= self._host_budget
            wait = nothing
            if self._work_per_byte and not vertex.after_kept:
                wait = np.maximum(coming * self._work_per_byte - hides[row], 0)
                fits &= (wait == 0) | (not self._hidden)
            rows = np.flatnonzero(fits)
            if not len(rows):
                continue
            source = np.empty((len(rows), 3), np.int64)
            source[:, 0], source[:, 1], source[:, 2] = number, rows, row
            made = Labels(
                labels.in_flight[rows] if kept else np.full(len(rows), float(host)),
                labels.device[rows] + steps.added[row],
                labels.host[rows] + host,
                labels.work[rows] + steps.work[row] + wait[rows],
                source,
            )
            waiting[ends[row]].setdefault(_Vertex(int(steps.target[row]), kept), []).append(made)
