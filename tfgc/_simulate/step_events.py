"""A training step as a list of events, in the order in which it runs by a plan.

Each segment runs forward; then comes the loss; then, last segment first, each runs its backward
pass, after running again where it is recomputed, by its inner plan where it has one. Every
run of a node makes buffers of its own. What a replay makes and nobody reads is not run.

In mode `graph` a buffer goes when nobody reads it any more. In mode `compiled` each segment
is a compiled function of its own, called from Python: what it is given (inputs, what a kept one
stored, upstream gradients) and what it returned in the first pass stay until its backward pass returns, and
gradients of weights until the end of the step.
"""

import dataclasses

from tfgc._core.buffers import Buffers


@dataclasses.dataclass(slots=True)
class Event:
    """One run of a node in one direction.

    Attributes:
        position: The node.
        phase: `forward`, `replay`, `loss`, `backward` or `return` (of a compiled segment).
        reads, makes: Buffers, numbered as in `StepEvents.sizes`. One that keeps makes its internal buffer last.
        need: Bytes besides these buffers: what the node needs meanwhile, cotangents and gradients of weights.
        course: Signed bytes of what comes and goes meanwhile.
        work: In `StepEvents.unit`.
        taken: A buffer that is written over, or None.
        cotangents: What becomes of cotangents, as in `Buffers.cotangents`.
        gradient: Bytes of the gradients of weights that it makes.
    """

    position: int
    phase: str
    reads: list
    makes: list
    need: int
    course: tuple = ()
    work: float = 0
    taken: int | None = None
    cotangents: tuple = ((), (), ())
    gradient: int = 0


class StepEvents:
    """The events of one step.

    Attributes:
        events: List of `Event`.
        sizes: Bytes of each buffer that they make.
        work: Forward and backward work of each node.
        unit: What work is counted in.
        compiled: Whether segments are compiled one by one and called from Python.
    """

    def __init__(self, graph, segments, mode="graph"):
        self.graph, self.buffers = graph, Buffers.of(graph)
        self.events, self.sizes = [], []
        self.work, self.unit = works(graph)
        self.compiled = mode == "compiled"
        self._pending = 0  # gradients of weights that wait for the end of a compiled step
        given = {number: self._new(0) for number in range(len(graph.inputs))}
        self._run(segments, given, replay=False)

    def _new(self, size):
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _run(self, segments, held, replay):
        """Run segments forward and backward; `held` maps buffers of outside to the copies to read."""
        b, position = self.buffers, self.graph.position
        parts = [[position[name] for name in segment.nodes] for segment in segments]
        inside = [i for part in parts for i in part]
        runs = b.needed(inside) if replay else inside
        ahead = b.waiting[max(inside) + 1] + self._pending if replay else 0
        held, internal = dict(held), {}
        for segment, part in zip(segments, parts):
            for i in part:
                if i in runs:
                    self._forward(i, held, internal, segment.mode == "keep", replay, part, ahead)
        if not replay:
            made = [held[number] for number in b.outputs]
            last = len(self.graph) - 1
            # In eager mode the tape holds the outputs, so that nothing is written over them.
            need = b.loss + (b.waiting[-1] if self.compiled and self.graph.loss else 0)
            self.events.append(Event(last, "loss", made, [], need, self.graph.loss, cotangents=b.cotangents[last + 1]))
        for segment, part in zip(reversed(segments), reversed(parts)):
            first = len(self.events)
            outside = self._outside(part, held)
            if segment.mode == "keep":
                for i in reversed(part):
                    self._backward(i, held, internal)
            else:
                inner = segment.inner.segments if segment.inner else (dataclasses.replace(segment, mode="keep"),)
                self._run(inner, outside, replay=True)
            if self.compiled and not replay:
                self._return(segment, part, held, internal, outside, first)

    def _outside(self, part, held):
        """The copies of the buffers that a segment reads from outside of it."""
        b = self.buffers
        own = {number for i in part for number in b.makes[i]}
        return {n: held[n] for i in part for n in (*b.reads[i], *b.keeps[i]) if n in held and n not in own}

    def _forward(self, i, held, internal, keep, replay, part, ahead):
        b, cost = self.buffers, self.graph.costs[i]
        need, taken = (b.keeping[i] if keep else b.forward[i]), None
        if b.takes[i] and i - 1 in part:
            need -= min(need, sum(b.size[m] for m in b.makes[i]))
            taken = held[next(n for n in b.reads[i] if n in b.makes[i - 1])]
        reads = [held[number] for number in b.reads[i]]
        makes = [self._new(b.size[m]) for m in b.makes[i]]
        held.update(zip(b.makes[i], makes))
        if keep:
            internal[i] = self._new(b.internal[i])
            makes.append(internal[i])
        self.events.append(
            Event(
                position=i,
                phase="replay" if replay else "forward",
                reads=reads,
                makes=makes,
                need=need + ahead,
                course=cost.keeping if keep else cost.forward,
                work=self.work[i][0],
                taken=taken,
            )
        )

    def _backward(self, i, held, internal):
        b, cost = self.buffers, self.graph.costs[i]
        if b.gradients[i] is None:
            return
        reads = [held[number] for number in b.keeps[i]]
        reads += [internal[i]] if i in internal else []
        self.events.append(
            Event(
                position=i,
                phase="backward",
                reads=reads,
                makes=[],
                need=b.gradients[i] + b.backward[i] + self._pending,
                course=cost.backward,
                work=self.work[i][1],
                cotangents=b.cotangents[i],
                gradient=cost.gradient_bytes if self.graph.whole_step else 0,
            )
        )
        if self.compiled and self.graph.whole_step:
            self._pending += cost.gradient_bytes

    def _return(self, segment, part, held, internal, outside, first):
        """Let what a compiled segment was given stay until the end of its backward pass."""
        b = self.buffers
        given = [held[n] for i in part for n in b.keeps[i]] + [internal[i] for i in part if i in internal]
        if segment.mode == "recompute":
            given = list(outside.values())
        # The tape holds what it returned, too.
        given += [held[n] for i in part for n in b.makes[i] if n in b.outputs or set(b.readers[n]).difference(part)]
        born, gone = set(), 0
        upstream = []
        for event in self.events[first:]:
            event.need += gone
            sums, new, ended = event.cotangents
            born.update(number for number, _ in (*sums, *new))
            stay = [number for number in ended if number not in born]
            gone += sum(b.cotangent_bytes[number] for number in stay)
            upstream += stay
            event.cotangents = (sums, new, tuple(number for number in ended if number in born))
        need = b.waiting[part[0]] + gone + self._pending
        self.events.append(Event(part[0], "return", given, [], need, cotangents=((), (), tuple(upstream))))


def works(graph):
    """Forward and backward work of each node, and its unit: seconds if every node was timed, else flops."""
    if all(cost.seconds is not None for cost in graph.costs):
        return [(cost.seconds, cost.backward_seconds) for cost in graph.costs], "s"
    return [(cost.flops, cost.backward_flops) for cost in graph.costs], "flop"
