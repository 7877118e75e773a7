"""Plans with nested replays: the least work for every amount of memory, by dynamic programming.

After rotor (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, arXiv:1911.13214), over
arbitrary graphs in their fixed order. A *pass* from position i to j runs forward and then
backward. It either keeps the first unit of nodes and goes on behind it, or runs a
stretch forward without keeping, goes on behind that, and then makes a pass over the stretch itself. What
a pass costs depends on i, j, the memory left, and on which of its inputs are held for others anyway.

Memory is counted in slots, rounded to the nearest: the front says what a plan should
need, `_simulate.simulator` what it does need. Where all byte counts are multiples of
a slot, as in small graphs, the result is exact.
"""

import itertools

import numpy as np

from tfgc._core.buffers import Buffers
from tfgc._simulate import step_events
from tfgc.strategies._segment_costs import SegmentCosts


class Passes:
    """Passes over a graph between given positions.

    Args:
        graph: The `Graph`.
        positions: Where segments may start, ascending, 0 among them.
        most: Bytes that are more than any plan needs.
        slots: In how many steps memory is counted.
        replays_again: Whether a replay may leave out what it runs and run it once more; else it keeps all that
            its own backward pass needs.
    """

    def __init__(self, graph, positions, most, slots=512, replays_again=True):
        self._b = b = Buffers.of(graph)
        self._n = n = len(graph)
        self._replays_again = replays_again
        self._works, _ = step_events.works(graph)
        self._crests = SegmentCosts(b, None)
        self._ends = [*positions, n]
        self._next = dict(itertools.pairwise(self._ends))
        self._size = np.array(b.size)
        self._maker = np.array(b.maker)
        self._unit = self._slot(most, slots)
        self.slots = int(-(-most // self._unit)) + 1
        self._left = np.arange(self.slots)
        self._rows = {}
        self._values = np.full((1024, self.slots), np.inf)
        self._choices = []
        self._lives = {}
        self.root = self._solve(0, n, frozenset(), True)

    def _slot(self, most, slots):
        counts = [*self._b.size, *self._b.internal, *(g or 0 for g in self._b.gradients), *self._b.waiting]
        counts += [*self._crests.keeping, *self._crests.forward, *self._b.backward]
        unit = int(np.gcd.reduce(np.array(counts, np.int64)))
        return unit if unit and most // unit <= slots else most / slots

    def _slots_of(self, count):
        return np.rint(np.asarray(count) / self._unit).astype(int)

    def _life(self, end, first):
        """For a pass up to `end`: the last use of each buffer, bytes alive before each node, who runs."""
        if (end, first) not in self._lives:
            b, n = self._b, self._n
            if first:
                last = np.maximum(b.last, self._maker)
                runs = np.ones(n, bool)
            else:
                used = [[at for at, ends in uses if ends <= end] for uses in b.uses]
                last = np.array([max([made, *at]) for made, at in zip(b.maker, used)])
                runs = np.array(b.wakes) <= end
            change = np.zeros(n + 2, np.int64)
            np.add.at(change, self._maker + 1, self._size)
            np.add.at(change, last + 1, -self._size)
            self._lives[end, first] = last, np.cumsum(change), runs
        return self._lives[end, first]

    def _inputs(self, start, end, first=False):
        """Buffers made before `start` that a pass over the stretch reads."""
        last = self._life(end, first)[0]
        return frozenset(x for x in self._b.crossing[start] if self._b.size[x] and last[x] >= start)

    def _bytes(self, buffers):
        return sum(self._b.size[x] for x in buffers)

    def _solve(self, start, end, held, first):
        """The row of `_values` for a pass: its least work, by slots of memory left besides what is held."""
        key = (start, end, held, first)
        if key not in self._rows:
            values, choice = self._done(held, first) if start == end else self._best(*key)
            row = len(self._choices)
            if row == len(self._values):
                self._values = np.concatenate([self._values, np.full_like(self._values, np.inf)])
            self._values[row] = values
            self._choices.append(choice)
            self._rows[key] = row
        return self._rows[key]

    def _done(self, held, first):
        """Nothing is left to run; at the end of the first pass comes the loss."""
        b, need = self._b, 0
        if first:
            need = b.loss + sum(b.size[x] for x in b.outputs if x not in held)
        return np.where(self._left >= self._slots_of(need), 0.0, np.inf), None

    def _best(self, start, end, held, first):
        last, live, runs = self._life(end, first)
        waiting = 0 if first else self._b.waiting[end]
        options = [self._keep(start, end, held, first, waiting)]
        # To run what comes last again is of use only where the loss comes between.
        middles = [k for k in self._ends if self._next[start] <= k < end + first]
        middles = [k for k in middles if k <= self._crests.replayable[start] and (first or self._replays_again)]
        if middles:
            nodes = np.arange(start, middles[-1])
            alive = live[nodes] + np.array(self._crests.forward)[nodes]
            for x in held:
                alive -= self._size[x] * (last[x] >= nodes)
            alive = np.where(runs[nodes], alive + waiting, 0)
            crest = np.maximum.accumulate(alive)
            work = np.cumsum([w[0] if r else 0 for w, r in zip(self._works[start : middles[-1]], runs[nodes])])
        for k in middles:
            inputs = self._inputs(start, k)
            new = inputs - held
            idle = [x for x in new if last[x] < k - 1]
            need = crest[k - 1 - start]
            if idle:
                late = alive[: k - start] + sum(self._size[x] * (nodes[: k - start] > last[x]) for x in idle)
                need = np.where(runs[nodes[: k - start]], late, 0).max()
            after = (held | inputs) & self._inputs(k, end, first)
            rest = self._solve(k, end, after, first)
            again = self._solve(start, k, held & inputs, False)
            options.append((need, self._bytes(new), rest, again, work[k - 1 - start], k))
        return self._choose(options)

    def _keep(self, start, end, held, first, waiting):
        """The option to keep the first unit of nodes, and go on behind it."""
        b, stop = self._b, self._next[start]
        last, live, runs = self._life(end, first)
        kept, internal, need, work = {}, 0, 0, 0
        for v in range(start, stop):
            if runs[v]:
                alive = live[v] - sum(b.size[x] for x in held if last[x] >= v) + internal
                alive += sum(size for x, size in kept.items() if last[x] < v)
                need = max(need, alive + self._crests.keeping[v] + waiting)
                work += self._works[v][0]
            kept.update((x, b.size[x]) for x in b.keeps[v] if x not in held)
            internal += b.internal[v]
            if b.gradients[v] is not None:
                need = max(need, sum(kept.values()) + internal + b.gradients[v] + b.backward[v])
                work += self._works[v][1]
        after = (held | frozenset(kept)) & self._inputs(stop, end, first)
        return need, sum(kept.values()) + internal, self._solve(stop, end, after, first), None, work, stop

    def _choose(self, options):
        needs, added, rests, agains, works, _ = zip(*options)
        room = self._left[None] - self._slots_of(added)[:, None]
        value = self._values[np.array(rests)[:, None], np.maximum(room, 0)] + np.array(works)[:, None]
        value[1:] += self._values[[a for a in agains if a is not None]]
        value[(room < 0) | (self._left[None] < self._slots_of(needs)[:, None])] = np.inf
        best = value.argmin(axis=0)
        return value[best, self._left], (options, best)

    def front(self):
        """Slots of memory at which the least work falls, fewest first."""
        values = self._values[self.root]
        return [int(slot) for slot in range(self.slots) if values[slot] < (values[slot - 1] if slot else np.inf)]

    def pieces(self, slot):
        """The plan for an amount of memory, as pieces for `Plan.from_pieces`."""
        return self._pieces(self.root, 0, slot)

    def _pieces(self, row, start, slot):
        pieces = []
        while self._choices[row] is not None:
            options, best = self._choices[row]
            _, added, rest, again, _, stop = options[best[slot]]
            if again is not None:
                inner = self._pieces(again, start, slot)
                pieces.append((start, stop, inner if len(inner) > 1 else "recompute"))
            elif pieces and pieces[-1][2] == "keep":
                pieces[-1] = (pieces[-1][0], stop, "keep")
            else:
                pieces.append((start, stop, "keep"))
            start, row, slot = stop, rest, slot - int(self._slots_of(added))
        return pieces
