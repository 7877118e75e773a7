"""Plans without nesting, as paths through states: the least peak, and the least work under a peak.

A state is a position and the set of buffers that segments before it hold and that are
still of use after it. Its label is the number of bytes held. A step is a segment that is
recomputed or a node that is kept. Fewer bytes held in the same state can
do whatever more can, so one label a state decides what fits under a peak.
"""

import numpy as np

from tfgc._core.buffers import Buffers
from tfgc._core.plan import Plan
from tfgc._simulate import step_events
from tfgc.strategies._segment_costs import SegmentCosts


class Paths:
    """All plans without nesting of one graph.

    Args:
        graph: The `Graph`.
        limit: Bytes that no plan of interest exceeds.
    """

    def __init__(self, graph, limit):
        self.graph = graph
        self._buffers = b = Buffers(graph)
        self._work, _ = step_events.works(graph)
        self._sweeper = SegmentCosts(b, [forward for forward, _ in self._work])
        self._positions = [p for p in range(len(graph)) if not b.takes[p]]
        self._limit = limit
        self._explore()

    def _explore(self):
        """Find every state that can be reached, and the steps between them."""
        b, n = self._buffers, len(self.graph)
        allowed = set(self._positions) | {n}
        crossing = [frozenset(x for x in numbers if b.size[x]) for numbers in b.crossing]
        self._at, self._ids, self._ends = [[] for _ in range(n + 1)], {}, {}
        self._steps = []

        def state(position, held):
            key = (position, held)
            if key not in self._ids:
                self._ids[key] = len(self._ids)
                self._at[position].append(key)
                self._steps.append(None)
            return self._ids[key]

        state(0, frozenset())
        for position in range(n):
            for key in self._at[position]:
                held = key[1]
                rows = [self._keep(position, held, state, crossing)]
                if position in allowed:
                    for stretch in self._sweeper.sweep(position, held, self._limit):
                        if stretch.end in allowed:
                            after = (held | stretch.inputs) & crossing[stretch.end]
                            need = max(stretch.forward, stretch.replay)
                            rows.append((state(stretch.end, after), need, stretch.captured, stretch.work, 1))
                self._steps[self._ids[key]] = [np.array(column) for column in zip(*rows)]
        loss = b.loss
        for key in self._at[n]:
            self._ends[self._ids[key]] = loss + sum(b.size[x] for x in b.outputs if x not in key[1])

    def _keep(self, position, held, state, crossing):
        """The step over one node that is kept: its target, need, bytes added and work."""
        b = self._buffers
        new = [x for x in b.keeps[position] if x not in held]
        added = sum(b.size[x] for x in new) + b.internal[position]
        need = self._sweeper.live(position, held) + self._sweeper.keeping[position]
        if b.gradients[position] is not None:
            need = max(need, added + b.gradients[position] + b.backward[position])
        after = (held | frozenset(x for x in new if b.size[x])) & crossing[position + 1]
        return state(position + 1, after), need, added, 0, 0

    def _order(self):
        return [self._ids[key] for keys in self._at[:-1] for key in keys]

    def _fit(self, peak):
        """The way to the end that holds least under `peak`, as pairs (state, row of its steps); or None."""
        held = np.full(len(self._ids), np.inf)
        came = np.full((len(self._ids), 2), -1)
        held[0] = 0
        for state in self._order():
            if held[state] < np.inf:
                targets, needs, added, _, _ = self._steps[state]
                new = held[state] + added
                # A state can be the target of two rows, the last of which is one node run again.
                for rows in (slice(0, 1), slice(1, None)):
                    better = (held[state] + needs[rows] <= peak) & (new[rows] < held[targets[rows]])
                    held[targets[rows][better]] = new[rows][better]
                    came[targets[rows][better], 0] = state
                    came[targets[rows][better], 1] = np.arange(len(targets))[rows][better]
        ends = [end for end, need in self._ends.items() if held[end] + need <= peak]
        if not ends:
            return None
        way, state = [], min(ends, key=lambda end: held[end])
        while state:
            way.append(tuple(came[state]))
            state = came[state, 0]
        return way[::-1]

    def peak(self, way):
        """The peak of the plan that goes a way."""
        held = peak = 0
        for state, row in way:
            targets, needs, added, _, _ = self._steps[state]
            peak, held, state = max(peak, held + needs[row]), held + added[row], targets[row]
        return int(max(peak, held + self._ends[state]))

    def work(self, way):
        """Work of the replays on a way."""
        return sum(self._steps[state][3][row] for state, row in way)

    def steps(self, peak):
        """All steps that may be on a way under `peak`, what the end needs by end state, and the number of states.

        A step is (state, row, target, need, bytes added, work of a replay).
        """
        least = np.full(len(self._ids), np.inf)
        least[0] = 0
        steps = []
        for state in self._order():
            targets, needs, added, works, _ = self._steps[state]
            usable = np.flatnonzero(least[state] + needs <= peak)
            for row in usable:
                least[targets[row]] = min(least[targets[row]], least[state] + added[row])
                steps.append((state, row, targets[row], needs[row], added[row], works[row]))
        ends = {end: need for end, need in self._ends.items() if least[end] + need <= peak}
        return [s for s in steps if s[2] in ends or s[2] not in self._ends], ends, len(self._ids)

    def least_peak(self):
        """The way of least peak; None if none is under the limit."""
        low, best = 0, self._fit(self._limit)
        while best is not None and low < self.peak(best):
            trial = (low + self.peak(best) - 1) // 2 if self.peak(best) - low > 1 else low
            found = self._fit(trial)
            if found is None:
                low = trial + 1
            else:
                best = found
        return best

    def cheapest(self, peak, slots=512):
        """The way of least work under `peak` bytes, which are counted in slots: rounded up, so never too few.

        Exact where all byte counts are multiples of a slot; None if nothing fits.
        """
        counts = np.concatenate([column for steps in self._steps if steps for column in steps[1:3]]).astype(np.int64)
        unit = np.gcd.reduce(np.append(counts, list(self._ends.values())))
        unit = unit if unit and peak // unit <= slots else peak / slots
        total = int(peak // unit)

        def up(count):
            return np.ceil(np.asarray(count) / unit - 1e-9).astype(int)

        left = np.arange(total + 1)
        value = np.full((len(self._ids), total + 1), np.inf)
        choice = np.zeros((len(self._ids), total + 1), np.int32)
        for end, need in self._ends.items():
            value[end, up(need) :] = 0
        for state in reversed(self._order()):
            targets, needs, added, works, _ = self._steps[state]
            rest = left[None] - up(added)[:, None]
            options = np.where(rest >= 0, value[targets[:, None], np.maximum(rest, 0)] + works[:, None], np.inf)
            options[left[None] < up(needs)[:, None]] = np.inf
            choice[state] = options.argmin(axis=0)
            value[state] = options[choice[state], left]
        if not np.isfinite(value[0, total]):
            return None
        way, state, room = [], 0, total
        while state not in self._ends:
            row = choice[state, room]
            way.append((state, row))
            room -= int(up(self._steps[state][2][row]))
            state = self._steps[state][0][row]
        return way

    def plan(self, way, **labels):
        """The `Plan` that goes a way, neighbouring kept nodes as one segment."""
        positions = [position for position, keys in enumerate(self._at) for _ in keys]
        where = dict(zip((self._ids[key] for keys in self._at for key in keys), positions))
        pieces = []
        for state, row in way:
            end, replayed = where[self._steps[state][0][row]], bool(self._steps[state][4][row])
            if pieces and not replayed and pieces[-1][2] == "keep":
                pieces[-1][1] = end
            else:
                pieces.append([where[state], end, "recompute" if replayed else "keep"])
        return Plan.from_pieces(self.graph, pieces, **labels)
