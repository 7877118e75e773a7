"""Plans without nesting, as paths through states.

A state is a position and the set of buffers that segments before it hold and that are still of use after it. A step is
a segment that is recomputed or a node that is kept. What it needs on top of the bytes held before depends on the state
alone.

The sets of buffers double with each output, head or branch that is alive beside others. So at a position with more
states than `_GROWN` affords, some of them are gone on from, and others left out.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._simulate.work import node_work
from tfgc.strategies._flat_states import State, States, members
from tfgc.strategies._segment_costs import SegmentCost, SegmentCosts

# Pairs of a state and the row of the step taken from there
Path: TypeAlias = list[tuple[int, int]]
# The values of `Steps` for one step
Row: TypeAlias = tuple[int, int, int, int, float, bool, int]

# Nodes by which segments may grow, each takes 15 microseconds; and how many states of a position segments may always
# start in: NASNet and U-Net have up to 32.
_GROWN, _STATES = 50_000, 32


class Steps(NamedTuple):
    """The steps from one state, an array for each column."""

    target: NDArray[np.int64]  # the state that a step leads to
    need: NDArray[np.int64]  # most bytes at once meanwhile, on top of those held before
    backward: NDArray[np.int64]  # the same in the replay and the backward pass alone
    added: NDArray[np.int64]  # bytes that are held afterwards in addition
    work: NDArray[Any]  # work of a replay
    kept: NDArray[np.bool_]  # whether the step is a node that is kept, and no segment
    host: NDArray[np.int64]  # bytes that a segment stores on the host, in place of `added`


class FlatPlans:
    """All plans without nesting of one graph; none of interest exceeds `limit` bytes.

    Segments that are recomputed may start at `places`, by default at all where one may; they may store inputs on the
    `host`: `_host_plans` says what fits then.
    """

    def __init__(self, graph: Graph, limit: int, places: Collection[int] | None = None, host: bool = False) -> None:
        self.graph, self._host = graph, host
        self._buffers = b = Buffers.of(graph)
        self._costs = SegmentCosts(b, node_work(graph))
        self.limit = limit
        n = len(graph)
        chosen = range(n) if places is None else frozenset(places)
        self._may_cut = [*(i in chosen for i in range(n)), True]
        self._live_across = [sum(1 << x for x in numbers if b.size[x]) for numbers in b.live_across]
        # What the least bytes held in a state leave of the limit is all that is worth looking at there.
        self._found = found = States(b.size, n + 1, host)
        self.steps: dict[int, Steps] = {}  # from each state that some plan under the limit comes to
        # For each state after the last node, the bytes that the loss needs on top of those held.
        self.ends: dict[int, int] = {}
        grown = 0
        # Nodes that the segments from one state grow by, and those from one state of each position behind as well.
        grows = [1 + may_cut * (n - i) for i, may_cut in enumerate(self._may_cut)]
        left = list(itertools.accumulate(reversed(grows)))[::-1]
        for position in range(n):
            for state in found.chosen(position, max(_STATES, (_GROWN - grown) // left[position])):
                self.steps[state] = self._steps_from(state)
                grown += grows[position]
        for state in found.chosen(n, max(_STATES, _GROWN - grown)):
            outside = (b.size[x] for x in b.graph_outputs if not found.all[state].held >> x & 1)
            self.ends[state] = b.loss_bytes + sum(outside)
        # What options of plans say if states were left out: how many were gone on from, of how many.
        self.searched: dict[str, list[int]] = {}
        self.states = found.all
        if found.left_out:
            count = len(self.steps) + len(self.ends)
            self.searched = {"searched": [count, count + found.left_out]}
            self._drop_dead_ends()

    def _drop_dead_ends(self) -> None:
        """Number those states anew from which an end is reached, and drop others, and steps to them."""
        alive = np.zeros(len(self.states), bool)
        alive[[0, *self.ends]] = True
        for state, steps in reversed(self.steps.items()):
            alive[state] |= alive[steps.target].any()
        number = np.cumsum(alive) - 1
        self.states = [self.states[state] for state in np.flatnonzero(alive)]
        self.ends = {int(number[state]): need for state, need in self.ends.items()}
        known, self.steps = self.steps, {}
        for state, steps in known.items():
            rows = alive[steps.target]
            if rows.any():
                others: list[Any] = [column[rows] for column in steps[1:]]
                self.steps[int(number[state])] = Steps(number[steps.target[rows]], *others)

    def _steps_from(self, number: int) -> Steps:
        state, room = self._found.all[number], self.limit - self._found.held[number]
        held = frozenset(members(state.held))
        rows = [self._keep(state, held)]
        if self._may_cut[state.position]:
            for segment in self._costs.sweep(state.position, held, room):
                if self._may_cut[segment.end]:
                    rows += self._stored(state, segment, room)
        for target, need, _, added, work, *_ in rows:
            if need <= room:
                self._found.reach(target, number, need, added, work)
        return Steps(*(np.array(column) for column in zip(*rows)))

    def _stored(self, state: State, segment: SegmentCost, room: float) -> Iterator[Row]:
        """The steps over a segment that is recomputed, with its inputs on the device, and on the host."""
        most, back, added = max(segment.forward_peak, segment.replay_peak), segment.replay_peak, segment.captured_bytes
        if most > room:
            return
        target = self._found.number(segment.end, (state.held | segment.inputs) & self._live_across[segment.end])
        yield target, most, back, added, segment.work, False, 0
        host = sum(self._buffers.size[x] for x in members(segment.inputs)) if self._host else 0
        if host:
            target = self._found.number(segment.end, state.held & self._live_across[segment.end])
            yield target, most, back, added - host, segment.work, False, host

    def _keep(self, state: State, held: frozenset[int]) -> Row:
        """The step over one node that is kept, as the values of `Steps`."""
        b, position = self._buffers, state.position
        new = [x for x in b.saved[position] if x not in held]
        added = sum(b.size[x] for x in new)
        need, back = self._costs.live(position, held) + b.forward_peak[position], 0
        gradient_bytes = b.gradient_bytes_at[position]
        if gradient_bytes is not None:
            back = added + gradient_bytes + b.backward_peak[position]
        after = (state.held | sum(1 << x for x in new if b.size[x])) & self._live_across[position + 1]
        return self._found.number(position + 1, after), max(need, back), back, added, 0, True, 0

    def path(self, row_at: Callable[[int], int]) -> Path:
        """The path of a whole plan that takes this row of the steps at each state."""
        path: Path = []
        state = 0
        while state not in self.ends:
            path.append((state, row_at(state)))
            state = int(self.steps[state].target[path[-1][1]])
        return path

    def peak(self, path: Path) -> int:
        """The peak of a path's plan in bytes, as the graph counts them."""
        held = peak = end = 0
        for state, row in path:
            steps = self.steps[state]
            peak, held, end = max(peak, held + steps.need[row]), held + steps.added[row], steps.target[row]
        return int(max(peak, held + self.ends[end]))

    def plan(self, path: Path, *, strategy: str, options: dict[str, Any] | None = None) -> Plan:
        """The `Plan` of a path, neighbouring kept nodes as one segment."""
        pieces: list[tuple[int, int, str]] = []  # of `Plan.from_pieces`
        on_host: set[int] = set()  # ends of segments
        for state, row in path:
            steps = self.steps[state]
            start, end = (self.states[at].position for at in (state, steps.target[row]))
            how = "keep" if steps.kept[row] else "recompute"
            if how == "keep" and pieces and pieces[-1][2] == "keep":
                start, _, _ = pieces.pop()
            pieces.append((start, end, how))
            if steps.host[row]:
                on_host.add(end)
        plan = Plan.from_pieces(self.graph, pieces, strategy=strategy, options=options)
        segments = (dataclasses.replace(s, offload=end in on_host) for s, (_, end, _) in zip(plan.segments, pieces))
        return dataclasses.replace(plan, segments=tuple(segments))
