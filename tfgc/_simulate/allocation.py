"""What the allocator will report for a step: its bytes in use, chunks counted whole.

The events of a step are played to a model of TensorFlow's allocator, several steps in a
row, since what one step leaves behind decides where the next one's buffers go. An update
of a weight writes a new buffer, as TensorFlow does where a replay may still read the old one.
"""

import statistics

from tfgc._simulate.bfc_allocator import Allocator

_STEPS = 5


def allocated(walk):
    """Median over steps of the most bytes in use, above what is in use between them."""
    return int(statistics.median(_Player(walk).peaks()[1:]))


class _Player:
    def __init__(self, walk):
        self._walk, self._graph, self._b = walk, walk.graph, walk.buffers
        self._allocator = Allocator()
        self._ends = {}
        last = {}
        for when, event in enumerate(walk.events):
            last.update(dict.fromkeys([*event.makes, *event.reads], when))
        for buffer, when in last.items():
            self._ends.setdefault(when, []).append(buffer)
        self._weights = {i: self._allocator.take(c.gradient_bytes) for i, c in enumerate(self._graph.costs)}
        for ref in self._graph.inputs:
            self._allocator.take(self._graph.specs[(ref, 0)].bytes(self._graph.batch_size))

    def peaks(self):
        return [self._step() for _ in range(_STEPS)]

    def _step(self):
        base = self._peak = self._allocator.in_use
        self._at, self._cotangents, self._gradients = {}, {}, []
        for when, event in enumerate(self._walk.events):
            if event.phase in ("forward", "replay"):
                self._forward(event)
            else:
                self._backward(event)
            for buffer in self._ends.get(when, ()):
                for address in self._at.pop(buffer, ()):
                    self._allocator.give(address)
        for address in self._cotangents.values():
            self._allocator.give(address)
        while self._gradients:
            self._update(self._gradients[0][0])
        return self._peak - base

    def _update(self, position):
        """Write a new buffer for the weights of a node, and end their gradient."""
        gradient = next(pair for pair in self._gradients if pair[0] == position)
        fresh = self._allocator.take(self._graph.costs[position].gradient_bytes)
        self._allocator.give(self._weights[position])
        self._weights[position] = fresh
        self._gradients.remove(gradient)
        self._allocator.give(gradient[1])

    def _take(self, count):
        address = self._allocator.take(count)
        self._peak = max(self._peak, self._allocator.in_use)
        return address

    def _course(self, event, freed):
        """Play the course of an event; return what is left as pairs (bytes, address)."""
        here, taken = [], event.taken
        for count in event.course:
            if count > 0 and taken is not None and self._walk.sizes[taken] == count:
                here.append((count, *self._at.pop(taken, [None])))
                taken = None
            elif count > 0:
                here.append((count, self._take(count)))
            elif not _drop(here, -count, self._allocator):
                freed(-count)
        return here

    def _forward(self, event):
        here = self._course(event, lambda count: None)
        n = len(self._b.makes[event.position])
        for buffer in event.makes[:n]:
            size = self._walk.sizes[buffer]
            self._at[buffer] = [_pick(here, size) if _has(here, size) else self._take(size)]
        for buffer in event.makes[n:]:
            self._at[buffer] = [address for _, address in here]
            here = []
        for _, address in here:
            self._allocator.give(address)

    def _backward(self, event):
        sums, new, ended = event.cotangents
        for number, parts in sums:
            self._cotangents[number] = self._cotangents.pop(parts[0], None)
            for part in parts[1:]:
                self._allocator.give(self._cotangents.pop(part, None))
        if event.gradient:
            self._gradients.append((event.position, self._take(event.gradient)))
        upstream = [number for number in ended if number in self._cotangents]

        def end(count):
            for number in upstream:
                if self._b.cotangent_bytes[number] == count:
                    upstream.remove(number)
                    return self._cotangents.pop(number)
            return None

        held = []
        if event.phase == "loss" and self._walk.compiled and event.course:
            held = [(0, self._take(size)) for _, size in new]
        here = held + self._course(event, lambda count: self._allocator.give(end(count)))
        for number, size in new:
            address = _pick(here, size) if _has(here, size) else end(size)
            self._cotangents[number] = self._take(size) if address is None else address
        for address in [*(self._cotangents.pop(number) for number in upstream), *(a for _, a in here)]:
            self._allocator.give(address)
        if event.gradient and not self._walk.compiled:
            self._update(event.position)


def _has(here, size):
    return any(count == size for count, _ in here)


def _pick(here, size):
    return here.pop(next(i for i, (count, _) in enumerate(here) if count == size))[1]


def _drop(here, size, allocator):
    """Give back the newest buffer of a size; False if there is none."""
    for i in range(len(here) - 1, -1, -1):
        if here[i][0] == size:
            allocator.give(here.pop(i)[1])
            return True
    return False
