"""The plans of a graph of least peak, and of least work for every amount of memory: dynamic programming over passes.

After rotor (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, arXiv:1911.13214), over arbitrary graphs in their fixed
order. What a pass needs on top of the bytes held before it depends on the pass alone, so its least peak is known
exactly. Its least work is known for memory in slots, rounded to the nearest: exact where all byte counts are multiples
of a slot, as in small graphs. A plan takes options that are known to fit, and so needs no more than it is given.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._core.segments import Piece
from tfgc.strategies._passes import Option, Pass

# Of memory, where bytes are counted in slots; and where those of the host are counted as well.
_SLOTS, _SLOTS_BESIDE_HOST, _HOST_SLOTS = 512, 128, 16


Choice: TypeAlias = Callable[[int, float, float], int]


class Columns(NamedTuple):
    """The options of a pass, an array for each field; passes are named by their rows."""

    need: NDArray[np.int64]
    added: NDArray[np.int64]
    host: NDArray[np.int64]
    rest: NDArray[np.int64]
    replay: NDArray[np.int64]
    work: NDArray[np.float64]

    def peaks(self, least: NDArray[np.float64]) -> NDArray[np.float64]:
        """The least peak by each option, of those of all passes."""
        return np.maximum(np.maximum(self.need, self.added + least[self.rest]), least[self.replay])


class Search:
    """The passes of a graph, a row for each, those that others depend on first; then one where nothing is to be done.

    Attributes:
        graph: The graph.
        parts, options, columns: The pass and its options, by row; the latter also as `Columns`.
        root: The row of the whole step.
        least: The least peak of each.
        work: Work of what runs again in a plan that has it.
    """

    def __init__(self, graph: Graph, options: Mapping[Pass, Sequence[Option]]) -> None:
        self.graph = graph
        self.parts = sorted(options, key=lambda part: (part.end - part.start, part.first))
        rows: dict[Pass | None, int] = {part: i for i, part in enumerate(self.parts)}
        rows[None], self.root = len(self.parts), len(self.parts) - 1
        self.options = [options[part] for part in self.parts]
        self.columns: list[Columns] = []
        for found in self.options:
            counts = [(o.need, o.added, o.host, rows[o.rest], rows[o.replay]) for o in found]
            need, added, host, rest, replay = np.array(counts, np.int64).reshape(len(found), 5).T
            self.columns.append(Columns(need, added, host, rest, replay, np.array([o.work for o in found])))
        self.least, self.work = np.full((2, len(rows)), np.inf)
        self.least[-1] = self.work[-1] = 0
        for row, (found, columns) in enumerate(zip(self.options, self.columns)):
            if found:
                option = found[best := self.least_choice(row)]
                self.least[row] = columns.peaks(self.least)[best]
                self.work[row] = option.work + self.work[columns.rest[best]] + self.work[columns.replay[best]]

    @property
    def least_peak(self) -> float:
        """The least peak of a plan; infinite if there is none under the limit of the passes."""
        return float(self.least[self.root])

    def least_choice(self, row: int) -> int:
        """The option of a pass that has its least peak, and of these the least work."""
        c = self.columns[row]
        return int(np.lexsort((c.work + self.work[c.rest] + self.work[c.replay], c.peaks(self.least)))[0])

    def path(self, choose: Choice, budget: float = np.inf, host: float = np.inf) -> "Path":
        """The whole step by the options that are chosen for a row, bytes left, and bytes left on the host."""
        found = Path([], set(), 0.0)
        self._follow(found, found.pieces, self.root, choose, budget, host)
        return found

    def _follow(
        self, found: "Path", pieces: list[Piece], row: int, choose: Choice, left: float, host: float
    ) -> list[Piece]:
        while (start := self.parts[row].start) < self.parts[row].end:
            k = choose(row, left, host)
            option, columns = self.options[row][k], self.columns[row]
            found.work += option.work
            if option.kept:
                start = pieces.pop()[0] if pieces and pieces[-1][2] == "keep" else start
                pieces.append((start, option.stop, "keep"))
            else:
                again = option.replay and self._follow(found, [], int(columns.replay[k]), choose, left, host)
                pieces.append((start, option.stop, again if again and len(again) > 1 else "recompute"))
            if option.host:
                found.on_host.add(option.stop)
            row, left, host = int(columns.rest[k]), left - option.added, host - option.host
        return pieces


@dataclasses.dataclass
class Path:
    """A way through passes.

    Attributes:
        pieces: Those of its plan.
        on_host: Where segments end that store their inputs on the host.
        work: Work of what runs again.
    """

    pieces: list[Piece]
    on_host: set[int]
    work: float

    def plan(self, graph: Graph, **named: Any) -> Plan:
        """The plan, by the arguments of `Plan.from_pieces`."""
        plan = Plan.from_pieces(graph, self.pieces, **named)
        ends = zip(plan.segments, self.pieces)
        segments = (dataclasses.replace(segment, offload=end in self.on_host) for segment, (_, end, _) in ends)
        return dataclasses.replace(plan, segments=tuple(segments))


class LeastWork:
    """The least work of each pass of a search, by slots of memory left on the host and on the device."""

    def __init__(self, search: Search, most: float, host_budget: int | None = None) -> None:
        self._search, self._host_budget = search, host_budget
        counts = np.concatenate([np.concatenate([c.need, c.added]) for c in search.columns])
        beside_host = host_budget is not None
        self._slot = _slot_bytes(counts, most, _SLOTS_BESIDE_HOST if beside_host else _SLOTS)
        stored = np.concatenate([c.host for c in search.columns]) if beside_host else np.zeros(0, np.int64)
        self._host_slot = _slot_bytes(stored, host_budget or 0, _HOST_SLOTS)
        left = np.arange(int(most // self._slot) + 1)
        host_left = np.arange(int((host_budget or 0) // self._host_slot) + 1)
        self._work = np.full((len(search.columns) + 1, len(host_left), len(left)), np.inf)
        self._work[-1] = 0
        for row, c in enumerate(search.columns):
            if not len(c.need):
                continue
            room = left - np.rint(c.added / self._slot).astype(int)[:, None]
            fits = (room >= 0) & (left >= np.rint(c.need / self._slot)[:, None])
            on_host = host_left - np.ceil(c.host / self._host_slot * beside_host).astype(int)[:, None]
            work = self._work[c.rest[:, None, None], np.maximum(on_host, 0)[:, :, None], np.maximum(room, 0)[:, None]]
            work += c.work[:, None, None] + self._work[c.replay]
            work[~(fits[:, None] & (on_host >= 0)[:, :, None])] = np.inf
            self._work[row] = work.min(axis=0)

    def falls(self) -> NDArray[Any]:
        """Bytes at which the least work of a plan falls, fewest first."""
        work = self._work[self._search.root, -1]
        return self._slot * np.flatnonzero(work < np.concatenate([[np.inf], work[:-1]]))

    def plan(self, budget: float, **named: Any) -> Plan:
        """A plan of least work that needs at most so many bytes on the device, if there is one."""
        search = self._search
        found = search.path(self._choose, budget, self._host_budget or 0)
        if self._host_budget is None and found.work > search.work[search.root]:  # slots are rounded
            found = search.path(lambda row, *_: search.least_choice(row))
        return found.plan(search.graph, **named)

    def _choose(self, row: int, left: float, host: float) -> int:
        c = self._search.columns[row]
        peaks = c.peaks(self._search.least)
        works = c.work + self._least(c.rest, left - c.added, host - c.host) + self._least(c.replay, left, host)
        works = np.where(peaks <= left, works, np.inf)
        return int(np.argmin(works if np.isfinite(works).any() else peaks))

    def _least(self, rows: NDArray[np.int64], left: Any, host: Any) -> NDArray[np.float64]:
        slot = np.clip(np.asarray(left) / self._slot + 1e-9, 0, self._work.shape[2] - 1).astype(int)
        if self._host_budget is None:
            return np.minimum(self._work[rows, 0, slot], self._search.work[rows])
        host_slot = np.floor(np.asarray(host) / self._host_slot + 1e-9).astype(int)
        return np.where(host_slot >= 0, self._work[rows, np.maximum(host_slot, 0), slot], np.inf)


def _slot_bytes(counts: NDArray[np.int64], most: float, slots: int) -> float:
    """Bytes of a slot: what all counts are multiples of, if that makes no more than `_SLOTS` of so many bytes."""
    common = int(np.gcd.reduce(counts)) if len(counts) else 0
    return common if common and most // common <= _SLOTS else max(1, most / slots)
