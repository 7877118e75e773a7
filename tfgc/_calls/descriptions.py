"""A choice as the segments and the outlook of a plan."""

from collections.abc import Iterator, Mapping

import keras

from tfgc._calls import sweep
from tfgc._calls.options import Choice, pieces_of
from tfgc._calls.replays import Piece
from tfgc._calls.simulation import Outcome, Simulator
from tfgc._calls.step import Call, Step
from tfgc._core.segments import Outlook, Segment
from tfgc._simulate.work import least_work


def call_names(root: Call, layers: Mapping[str, keras.Layer], whole: str) -> dict[Call, str]:
    """A name for each call: that of its layer, with a number from its second call on."""
    path, count = {id(layer): name for name, layer in layers.items()}, dict[str, int]()
    found = {}
    for call in root.within():
        name = path.get(id(call.layer))
        # What has no name of its own is called as what is around it, the step itself as `whole`.
        if name is None:
            found[call] = whole if call.parent is None else found[call.parent]
            continue
        number = count[name] = count.get(name, -1) + 1
        found[call] = f"{name}:{number}" if number else name
    return found


class Segments:
    """The segments of one choice: recomputed calls, and what is kept between them, in the order in which they run."""

    def __init__(self, simulator: Simulator, choice: Choice, names: Mapping[Call, str]) -> None:
        self._simulator, self._step, self._names = simulator, simulator.step, names
        self._pieces = pieces = pieces_of(choice)
        self._parts = {call for option in choice if option.plan is not None for call in option.calls}
        self._again = {p.calls[0]: p for p in pieces if not self._parts.intersection(p.calls[0].ancestors())}
        self._holders = {outer for call in self._again.keys() | self._parts for outer in call.ancestors()}
        self._held: set[int] = set()

    def __iter__(self) -> Iterator[Segment]:
        kept: list[Call] = []
        for call in self._largest(self._step.root):
            if call not in self._again and call not in self._parts:
                kept.append(call)
                continue
            yield from self._kept(kept)
            kept = []
            yield self._recomputed(call) if call in self._again else self._part(call)
        yield from self._kept(kept)

    def _largest(self, call: Call) -> Iterator[Call]:
        """The largest calls in which nothing is recomputed, or that are recomputed as a whole."""
        for child in call.children:
            if child in self._holders and child not in self._parts:
                yield from self._largest(child)
            elif self._names[child] != self._names[call]:
                yield child
            else:  # the model itself, or an op
                yield from self._largest(child)

    def _recomputed(self, call: Call) -> Segment:
        piece = self._again[call]
        replay, whole = self._simulator.replay(piece), self._simulator.replay(Piece((call,)))
        stored = sum(self._step.sizes[b] for b in replay.inputs - self._held)
        self._held |= replay.inputs
        return Segment(
            (self._names[call],),
            stored_bytes=stored,
            inside_bytes=sweep.kept_inside(self._step, call),
            input_bytes=stored,
            work=replay.work,
            result_bytes=sum(self._step.sizes[b] for b in replay.inputs - whole.inputs) if piece.selective else None,
            spared_work=whole.work - replay.work if piece.selective else None,
            selective=piece.selective,
        )

    def _part(self, call: Call) -> Segment:
        """A functional part that runs by a plan of its own."""
        inner = set(call.within())
        replays = [self._simulator.replay(piece) for piece in self._pieces if piece.calls[0] in inner]
        again = {i for replay in replays for i in replay.early}
        made = {b for i in self._step.spans[call] if i not in again for b in self._step.operations[i].makes}
        held = (made & self._step.kept).union(*(replay.inputs for replay in replays))
        stored = sum(self._step.sizes[b] for b in held - self._held)
        self._held |= held
        inside = sweep.kept_inside(self._step, call)
        work = sum(replay.work for replay in replays)
        return Segment((self._names[call],), "keep", False, None, stored, inside, stored, work)

    def _kept(self, calls: list[Call]) -> Iterator[Segment]:
        if not calls:
            return
        made = {b for call in calls for i in self._step.spans[call] for b in self._step.operations[i].makes}
        inside = sum(self._step.sizes[b] for b in made & self._step.kept - self._held)
        self._held |= made & self._step.kept
        replays = [self._simulator.replay(Piece((call,))) for call in calls]
        inputs = sum(self._step.sizes[b] for b in set().union(*(r.inputs for r in replays)) - self._held)
        obstacle = next((self._step.obstacles[call] for call in calls if call in self._step.obstacles), None)
        work = sum(replay.work for replay in replays)
        if not work:  # what is kept is what would be kept anyway
            inputs = inside
        names = tuple(self._names[call] for call in calls)
        yield Segment(names, "keep", False, None, inside, inside, inputs, work, obstacle)


def outlook(step: Step, outcome: Outcome, plain: Outcome, names: Mapping[Call, str]) -> Outlook:
    """What a choice promises."""
    floor_bytes, floor_call = floor(step)
    return Outlook(
        peak_bytes=outcome.peak_bytes,
        node=names[outcome.owner],
        phase=outcome.phase,
        plain_bytes=plain.peak_bytes,
        floor_bytes=floor_bytes,
        floor_node=names[floor_call],
        overhead=outcome.work / max(step.work, 1),
        least_overhead=_least_work(step, outcome.peak_bytes) / max(step.work, 1),
        unit="flop",
        whole_step=True,
    )


def floor(step: Step) -> tuple[int, Call]:
    """What no choice gets below: the bytes of one operation alone, and its call."""
    return max(((_alone(step, i), operation.owner) for i, operation in enumerate(step.operations)), key=lambda p: p[0])


def _alone(step: Step, i: int) -> int:
    """Bytes of what an operation reads and makes."""
    operation = step.operations[i]
    made = 0 if operation.in_place else sum(step.sizes[b] for b in operation.makes)
    return sum(step.sizes[b] for b in set(operation.reads)) + made


def _least_work(step: Step, peak: int) -> float:
    """Work that any plan of this peak repeats: what is kept beyond it is made again, the cheapest bytes first."""
    sizes = {b: step.sizes[b] for b in step.kept if step.sizes[b]}
    costs = ((step.operations[step.makers[b]].work / size, size) for b, size in sizes.items())
    return least_work(sum(sizes.values()) - peak, costs)
