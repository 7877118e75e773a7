"""The labels of plans with a host: what a way to a vertex has cost so far, and those that no other one beats.

A label beats another one of its vertex if it has no more of any figure. Without a budget for the host its bytes do not
count. Groups of labels with the same bytes in flight are gone through from the fewest on.
"""

import bisect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Labels with the same bytes in flight, and groups in which more than these are first thinned out
_MOST_LABELS, _GROUPS = 256, 24
_EXACT = 2000  # such labels of which more are thinned out before they are compared


class Labels(NamedTuple):
    """Labels, a row each: bytes in flight, on the device and on the host, and work."""

    in_flight: NDArray[Any]
    device: NDArray[Any]
    host: NDArray[Any]
    work: NDArray[Any]
    source: NDArray[Any]  # where each comes from: vertex, label of it, row of its steps

    def chosen(self, rows: NDArray) -> "Labels":
        return Labels(*(column[rows] for column in self))


def joined(parts: list[Labels]) -> Labels:
    return Labels(*map(np.concatenate, zip(*parts)))


class Pruning:
    """Drops labels; `thinned` says whether some were among them that nothing beats."""

    def __init__(self, host_counts: bool) -> None:
        self._host_counts, self.thinned = host_counts, False

    def unbeaten(self, labels: Labels) -> Labels:
        """The labels of a vertex that no other one beats; of very many, some of each work."""
        groups = _by_bytes_in_flight(labels)
        groups = self._unbeaten_of_three(groups) if self._host_counts else map(self._spread, _unbeaten_of_two(groups))
        return joined(list(groups))

    def _unbeaten_of_three(self, groups: list[Labels]) -> Iterator[Labels]:
        """The labels of each group that none of it or of those before beats in bytes on both sides, and work."""
        before: list[Labels] = []
        for labels in groups:
            group = self._spread(self._unbeaten_of_group(labels))
            for others in before:
                group = group.chosen(~_beaten(group, others))
            if len(group.work):
                before.append(group)
                yield group

    def _unbeaten_of_group(self, labels: Labels) -> Labels:
        if len(labels.work) > _EXACT:
            labels = self._thinned(labels)
        figures = np.column_stack((labels.device, labels.host, labels.work))
        different, rows = np.unique(figures, axis=0, return_index=True)
        return labels.chosen(np.sort(rows[unbeaten(different[:, 1].tolist(), different[:, 2].tolist())]))

    def _spread(self, labels: Labels) -> Labels:
        if len(labels.work) <= _MOST_LABELS:
            return labels
        self.thinned = True
        order = np.argsort(labels.work)
        return labels.chosen(order[np.linspace(0, len(order) - 1, _MOST_LABELS).astype(int)])

    def _thinned(self, labels: Labels) -> Labels:
        """The label of least work in each of some groups of about the same bytes."""
        self.thinned = True
        shares = (column / max(column.max(), 1) for column in (labels.device, labels.host))
        device, host = (np.ceil(_GROUPS * share).astype(np.intp) for share in shares)
        group = device * (_GROUPS + 1) + host
        least = np.full((_GROUPS + 1) ** 2, np.inf)
        np.minimum.at(least, group, labels.work)
        rows = np.flatnonzero(labels.work == least[group])
        _, first = np.unique(group[rows], return_index=True)
        return labels.chosen(rows[first])


def _by_bytes_in_flight(labels: Labels) -> list[Labels]:
    order = np.argsort(labels.in_flight, kind="stable")
    return [labels.chosen(rows) for rows in np.split(order, np.flatnonzero(np.diff(labels.in_flight[order])) + 1)]


def _beaten(labels: Labels, others: Labels) -> NDArray[np.bool]:
    """Which labels have no less of any figure than one of the others."""
    pairs = zip((labels.device, labels.host, labels.work), (others.device, others.host, others.work))
    return np.all([theirs <= ours[:, None] for ours, theirs in pairs], axis=0).any(axis=1)


def _unbeaten_of_two(groups: list[Labels]) -> Iterator[Labels]:
    """The labels of each group that none of it or of those before beats in bytes on the device and work."""
    device, least = np.array([-np.inf]), np.array([np.inf])  # the front of the groups so far
    for group in groups:
        group = group.chosen(np.lexsort((group.work, group.device)))
        others = np.concatenate([[np.inf], np.minimum.accumulate(group.work)[:-1]])
        others = np.minimum(others, least[np.searchsorted(device, group.device, side="right") - 1])
        group = group.chosen(group.work < others)
        if len(group.work):
            yield group
        order = np.argsort(np.concatenate([device, group.device]), kind="stable")
        device = np.concatenate([device, group.device])[order]
        least = np.minimum.accumulate(np.concatenate([least, group.work])[order])


def unbeaten(host: Sequence[float], work: Sequence[float]) -> list[int]:
    """Positions of the pairs for which no pair before has both at most as large.

    The front of a set of points sorted by a first coordinate: Kung, Luccio & Preparata, "On Finding the Maxima of a Set
    of Vectors", 1975.

    >>> unbeaten([3, 1, 2, 4, 1], [5, 7, 6, 5, 6])
    [0, 1, 2, 4]
    """
    found = []
    hosts: list[float] = []  # the front so far, hosts ascending, works descending
    works: list[float] = []
    for i, (h, w) in enumerate(zip(host, work)):
        place = bisect.bisect_right(hosts, h)
        if place and works[place - 1] <= w:
            continue
        found.append(i)
        first = place - 1 if place and hosts[place - 1] == h else place
        last = place
        while last < len(works) and works[last] >= w:
            last += 1
        hosts[first:last], works[first:last] = [h], [w]
    return found
