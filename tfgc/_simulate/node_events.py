"""The events of a training step: what a node does in it, forward or again and backward, and the loss."""

import dataclasses
from collections.abc import Sequence

from tfgc._core.buffers import Buffers
from tfgc._core.cotangents import NO_CHANGES, CotangentChanges
from tfgc._core.graph import Graph
from tfgc._core.segments import Phase
from tfgc._simulate.work import node_work


@dataclasses.dataclass(slots=True)
class Event:
    """One run of a node in one direction."""

    position: int  # of the node
    phase: Phase
    reads: list[int]  # buffers, numbered as in `StepEvents.sizes`
    makes: list[int]  # the same; of a node that saves its internal buffer is the last
    extra_bytes: int  # besides these buffers: the node's workspace, cotangents and gradients of weights
    byte_trace: tuple[int, ...] = ()  # signed bytes of the buffers allocated (+) and freed (-) meanwhile
    work: float = 0  # in `StepEvents.unit`
    overwritten: int | None = None  # a buffer that is overwritten in place
    cotangents: CotangentChanges = NO_CHANGES
    gradient_bytes: int = 0  # of the gradients of weights that it makes
    results: tuple[int, ...] = ()  # buffers besides, that stay for a replay or an update


@dataclasses.dataclass(slots=True)
class Run:
    """A forward pass of some segments, or their replay."""

    held: dict[int, int]  # the copy of each buffer to read, by its number in `Buffers`
    internal: dict[int, int]  # the copy of each node's internal buffer, by position
    phase: Phase  # `forward` or `replay`
    pending: int  # bytes of gradients that wait meanwhile
    # By position the buffers of the dear products that are stored of a node: of those that its backward pass
    # reads, and of others.
    products: dict[int, tuple[int, int]]


class NodeEvents:
    """A list of events to which those of nodes are added; `compiled` segments are called one by one from Python."""

    def __init__(self, graph: Graph, compiled: bool) -> None:
        self.graph, self.buffers = graph, Buffers.of(graph)
        self.events: list[Event] = []
        self.sizes: list[int] = []  # bytes of each buffer that the events make
        self.work, self.unit = graph.once(node_work)
        self.compiled = compiled
        self.pending = 0  # bytes of gradients of weights that wait for the end of the step

    def new(self, size: int) -> int:
        """A new buffer."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def forward(self, i: int, run: Run, part: Sequence[int], keep: bool) -> None:
        """Run a node of the segment `part`; `keep` saves what its backward pass reads."""
        b, cost, work = self.buffers, self.graph.costs[i], self.work[i]
        peak, overwritten = (b.saving_peak[i] if keep else b.forward_peak[i]), None
        byte_trace, internal = cost.forward_saving_trace if keep else cost.forward_trace, b.internal_bytes[i]
        spent, reads = work.forward, [run.held[number] for number in b.inputs[i]]
        if i in run.products:
            peak, byte_trace, spent = b.selective_peak[i], cost.selective_trace, work.selective
            internal -= cost.selective_saved_bytes  # They are saved already.
            reads += run.products[i]
        if b.in_place[i] and i - 1 in part:
            peak -= min(peak, sum(b.size[number] for number in b.outputs[i]))
            overwritten = run.held[next(number for number in b.inputs[i] if number in b.outputs[i - 1])]
        makes = [self.new(b.size[number]) for number in b.outputs[i]]
        run.held.update(zip(b.outputs[i], makes))
        if keep:
            run.internal[i] = self.new(internal)
            makes.append(run.internal[i])
        self.events.append(Event(i, run.phase, reads, makes, peak + run.pending, byte_trace, spent, overwritten))

    def store(self, i: int, run: Run) -> None:
        """Store the dear products of a node that has just run, if it has some."""
        count, saved = self.buffers.selective_bytes[i], self.graph.costs[i].selective_saved_bytes
        if count:
            run.products[i] = self.events[-1].results = self.new(saved), self.new(count - saved)

    def loss(self, run: Run) -> None:
        """Compute the loss and its gradient."""
        b, graph = self.buffers, self.graph
        course = graph.eager_loss if self.compiled else graph.loss
        # Op by op the tape holds the outputs.
        written_over = () if self.compiled and not graph.xla else b.overwritten_outputs
        extra = b.bytes_of_loss(course, written_over)
        if self.compiled and course:
            extra += b.pending_gradient_bytes[-1]
        outputs = [run.held[number] for number in b.graph_outputs]
        changes = b.cotangent_changes[len(graph)]
        event = Event(len(graph) - 1, "loss", outputs, [], extra, course, cotangents=changes)
        if written_over:
            event.overwritten = run.held[written_over[0]]
        self.events.append(event)

    def backward(self, i: int, run: Run) -> None:
        """Run a node backward, if it has a gradient."""
        b, cost = self.buffers, self.graph.costs[i]
        gradient_bytes = b.gradient_bytes_at[i]
        if gradient_bytes is None:
            return
        reads = [run.held[number] for number in b.saved[i]]
        reads += [run.internal[i]] if i in run.internal else []
        reads += run.products.get(i, ())[:1]
        weight_gradients = cost.gradient_bytes if self.graph.whole_step else 0
        event = Event(i, "backward", reads, [], gradient_bytes + b.backward_peak[i] + self.pending, cost.backward_trace)
        event.work, event.cotangents = self.work[i].backward, b.cotangent_changes[i]
        event.gradient_bytes = weight_gradients
        self.events.append(event)
        if self.compiled or self.graph.late_updates:
            self.pending += weight_gradients
