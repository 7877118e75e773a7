"""Plans whose segments keep their inputs on the device or on the host: the cheapest of them within two budgets.

A vertex is a state of `FlatPlans` with the bytes that come back from the host while what follows is differentiated. Its
labels are triples of bytes held on the device, bytes on the host, and work; those that another one beats in all three
are dropped. All labels of a vertex are extended at once.

Each copy to the host has to be done when its segment has run, so that the link keeps up with the forward pass. What
comes back counts during the backward pass of the segment after it, and its copy waits for no other one. The simulator,
which counts event by event, judges the plans.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfgc._simulate.work import node_work
from tfgc.strategies._flat_plans import FlatPlans, Path
from tfgc.strategies._host_memory import HostMemory
from tfgc.strategies._unbeaten import unbeaten

# Labels of a vertex, and groups in which more than these are first thinned out
_MOST_LABELS, _GROUPS = 256, 24
_EXACT = 2000  # labels of a vertex of which more are thinned out before they are compared

Bytes: TypeAlias = NDArray[np.float64]


class _Vertex(NamedTuple):
    """A state, the bytes in flight to it from the host, and whether nodes that are kept follow what they are for."""

    state: int
    in_flight: int
    after_kept: bool


class _Labels(NamedTuple):
    """Labels, a row each, and where each comes from: vertex, label of it, row of its steps."""

    device: Bytes
    host: Bytes
    work: Bytes
    source: NDArray[np.int64]

    def chosen(self, rows: NDArray) -> "_Labels":
        return _Labels(self.device[rows], self.host[rows], self.work[rows], self.source[rows])


class HostPlans:
    """Searches the plans.

    Args:
        plans: The `FlatPlans`, made with `host=True`.
        host: What the host may hold, and the link to it.
        hidden: Whether only copies are made that no replay waits for.

    Attributes:
        thinned: Whether labels were dropped that nothing beats, so that a cheaper plan may exist.
    """

    def __init__(self, plans: FlatPlans, host: HostMemory, hidden: bool = False) -> None:
        self.plans, self.thinned, self._hidden = plans, False, hidden
        self._host_budget = np.inf if host.budget is None else host.budget
        self._work_per_byte = 0.0 if host.link is None else 1 / host.link
        self._position = np.array([plans.position(state) for state in range(len(plans))])
        works, _ = node_work(plans.graph)
        self._forward = np.concatenate([[0.0], np.cumsum([work.forward for work in works])])
        self._backward = np.concatenate([[0.0], np.cumsum([work.backward for work in works])])

    def cheapest(self, budget: int) -> Path | None:
        """The path of least work within `budget` bytes on the device; None if nothing fits."""
        waiting: list[dict[_Vertex, list[_Labels]]] = [{} for _ in range(len(self.plans.graph) + 1)]
        zero = np.zeros(1)
        waiting[0][_Vertex(0, 0, False)] = [_Labels(zero, zero, zero, np.full((1, 3), -1))]
        done: list[tuple[_Vertex, _Labels]] = []
        for position in waiting[:-1]:
            for vertex, parts in position.items():
                labels = self._unbeaten(parts)
                done.append((vertex, labels))
                self._extend(len(done) - 1, vertex, labels, budget, waiting)
        ends = []
        for vertex, parts in waiting[-1].items():
            labels = self._unbeaten(parts)
            coming = 0 if vertex.after_kept else vertex.in_flight
            fits = labels.device + self.plans.ends[vertex.state] + coming <= budget
            wait = coming * self._work_per_byte
            if fits.any() and not (wait and self._hidden):
                labels = labels.chosen(fits)
                best = int(labels.work.argmin())
                ends.append((float(labels.work[best]) + wait, tuple(map(int, labels.source[best]))))
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
            kept = not steps.slices[row]
            coming = in_flight if kept or not after_kept else 0
            peak = max(peak, held + max(steps.need[row], steps.backward[row] + coming))
            held += steps.added[row]
            in_flight, after_kept = (in_flight if kept else int(steps.host[row])), bool(kept)
            end = int(steps.target[row])
        return int(max(peak, held + self.plans.ends[end] + (0 if after_kept else in_flight)))

    def least_peak(self, low: int, high: int) -> int:
        """About the least budget from `low` to `high` that some plan is within, found to 1 %."""
        while high > 1.01 * low:
            middle = int((low * high) ** 0.5)
            if self.cheapest(middle) is None:
                low = middle + 1
            else:
                high = middle
        return high

    def _extend(
        self, number: int, vertex: _Vertex, labels: _Labels, budget: int, waiting: list[dict[_Vertex, list[_Labels]]]
    ) -> None:
        """Add what each step makes of the labels of a vertex to those that wait for its target."""
        steps, start = self.plans.steps[vertex.state], self.plans.position(vertex.state)
        kept, ends = steps.slices == 0, self._position[steps.target]
        in_flight = np.where(kept, vertex.in_flight, 0 if vertex.after_kept else vertex.in_flight)
        room = budget - np.maximum(steps.need, steps.backward + in_flight)
        works, usable = steps.work.astype(float), room >= labels.device.min()
        usable &= steps.host * self._work_per_byte <= self._forward[ends] - self._forward[start]
        if not vertex.after_kept:
            wait = in_flight * self._work_per_byte - works - (self._backward[ends] - self._backward[start])
            usable &= (wait <= 0) | (not self._hidden)
            works += np.maximum(wait, 0)
        for row in np.flatnonzero(usable).tolist():
            host = int(steps.host[row])
            fits = np.flatnonzero((labels.device <= room[row]) & (labels.host + host <= self._host_budget))
            if not len(fits):
                continue
            coming = vertex.in_flight if kept[row] else host
            reached = _Vertex(int(steps.target[row]), coming, bool(kept[row]) and coming > 0)
            source = np.empty((len(fits), 3), np.int64)
            source[:, 0], source[:, 1], source[:, 2] = number, fits, row
            device, work = labels.device[fits] + steps.added[row], labels.work[fits] + works[row]
            made = _Labels(device, labels.host[fits] + host, work, source)
            waiting[ends[row]].setdefault(reached, []).append(made)

    def _unbeaten(self, parts: list[_Labels]) -> _Labels:
        """The labels that no other one beats."""
        labels = _Labels(
            np.concatenate([part.device for part in parts]),
            np.concatenate([part.host for part in parts]),
            np.concatenate([part.work for part in parts]),
            np.concatenate([part.source for part in parts]),
        )
        if np.isinf(self._host_budget):
            labels = labels.chosen(np.lexsort((labels.work, labels.device)))
            least = np.minimum.accumulate(labels.work)
            labels = labels.chosen(np.concatenate([[True], labels.work[1:] < least[:-1]]))
        else:
            if len(labels.work) > _EXACT:
                labels = self._thinned(labels)
            different, rows = np.unique(np.column_stack(labels[:3]), axis=0, return_index=True)
            labels = labels.chosen(np.sort(rows[unbeaten(different[:, 1].tolist(), different[:, 2].tolist())]))
        if len(labels.work) > _MOST_LABELS:
            self.thinned = True
            order = np.argsort(labels.work)
            labels = labels.chosen(order[np.linspace(0, len(order) - 1, _MOST_LABELS).astype(int)])
        return labels

    def _thinned(self, labels: _Labels) -> _Labels:
        """The label of least work in each of some groups of about the same bytes."""
        self.thinned = True
        groups = [np.ceil(_GROUPS * column / max(column.max(), 1)) for column in (labels.device, labels.host)]
        order = np.lexsort((labels.work, *groups))
        _, first = np.unique(np.column_stack(groups)[order], axis=0, return_index=True)
        return labels.chosen(order[first])
