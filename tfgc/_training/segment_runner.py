"""Run a model segment by segment.

A segment is a pure function of the tensors that its nodes read from outside. Pass-through tensors are not arguments.
The `Runner` keeps live tensors in a table and drops each after its last use.

A segment with an inner plan first runs its nodes plainly, as any other; its replay runs the inner plan, whose segments
are blocks in turn, and so on to any depth. Invariant: both runs take the nodes in one order, that of the innermost
plans, since random numbers and statistics come in the order of the calls.

Known weakness: in eager calls that are not compiled, each level of a nest holds its upstream gradient and its repeated
outputs until it is done, so that many levels can peak above two.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.graph import Ref
from tfgc._core.plan import Plan
from tfgc._core.segments import Segment
from tfgc._errors import PlanMismatchError
from tfgc._framework import (
    backward_order,
    layer_settings,
    private_api,
    weight_gradients,
    whole_steps,
)
from tfgc._pure import functional, taken_results
from tfgc._replay import call_checks, host_inputs
from tfgc._replay.block import block
from tfgc._replay.trained import Trained
from tfgc._tracing import keras_graph
from tfgc._training import plan_report, segment_boundaries, shared_traces

Table = dict[Ref, Any]


class Runner:
    """A model's `call`, run by a plan.

    A call on a model whose graph has changed, such as a Sequential after `add`, follows where the plan still fits.

    Args:
        model, plan, compile_segments, check_replay: As for `tfgc.enable`.
        backlog: How much gradients of weights may hold that are put off; None for what follows from the plan.
        under_tapes: Whether calls with `training=False` run by the plan, too, if a tape records (see `LayerCall`).
        trained: Where variables that trained are noted; other plans of the model may share it.
    """

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        *,
        compile_segments: bool = True,
        check_replay: bool = False,
        backlog: weight_gradients.Backlog | None = None,
        under_tapes: bool = False,
        trained: Trained | None = None,
    ) -> None:
        self._original = type(model).call
        self._under_tapes = under_tapes
        self._backlog = backlog
        self.model = model
        watch = functional.record_checksum if check_replay else None
        self._options = (compile_segments, watch, trained or Trained())
        self.use(plan)

    def use(self, plan: Plan) -> None:
        """Run by another plan from now on; what was traced has to be traced again."""
        program = keras_graph.Program(self.model)
        plan.check(program.graph)
        plan_report.warn_of_host(self.model.name, plan)
        self.plan, self.program = plan, program
        options = RunOptions(program, *self._options)
        self._run = _SegmentChain(options, plan.segments, program.outputs)

    def _follow(self) -> None:
        # The caller may be tracing.
        with tf.init_scope():
            try:
                self.use(self.plan)
            except PlanMismatchError as error:
                raise PlanMismatchError(
                    f"{self.model.name!r} has changed since it was enabled: {error} Then enable it again"
                ) from error

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **context: Any) -> Any:
        """Replace the model's `call`; `training=False` runs the original, but for a part under a tape.

        So do calls with Keras's `context` arguments, for which nothing is traced.
        """
        is_training = training is not False or (self._under_tapes and private_api.could_train())
        if context or not is_training or whole_steps.is_here():
            return self._original(self.model, inputs, training=training, mask=mask, **context)
        call_checks.refuse_tf1_graph(f"the enabled {self.model.name!r}")
        if call_checks.is_empty(inputs):
            return self._original(self.model, inputs, training=training, mask=mask)
        if not self.program.is_current:
            self._follow()
        table = self.program.feed(inputs, mask)
        with weight_gradients.limited(self._backlog or weight_gradients.Backlog.of(self.plan)):
            self._run(table, training)
        return self.program.collect(table)

    call.is_patched_call = True


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a `Runner` runs segments; `watch` is called with the name of each node and what it made."""

    program: keras_graph.Program
    compiled: bool = False
    watch: Callable[[str, list], None] | None = None
    trained: Trained = dataclasses.field(default_factory=Trained)


class _SegmentChain:
    """Runs segments one after the other on a table of tensors; drops each tensor but the `kept` after its last use.

    Messages number them with a `prefix`: the number of the segment that they make up, with a dot.
    """

    def __init__(
        self, options: RunOptions, segments: Sequence[Segment], kept: Collection[Ref], prefix: str = ""
    ) -> None:
        self._offloads = any(segment.offload for segment in segments)
        kinds = shared_traces.Kinds()
        stored = segment_boundaries.stored_on_device(options.program.graph, segments) if self._offloads else ()
        self._segments = [_build(options, segment, f"{prefix}{i}", kinds, stored) for i, segment in enumerate(segments)]
        last_reader = {ref: i for i, segment in enumerate(self._segments) for ref in segment.needed}
        self._releases: list[list[Ref]] = [[] for _ in segments]
        for ref, i in last_reader.items():
            if ref not in kept:
                self._releases[i].append(ref)

    def __call__(self, table: Table, training: bool | None) -> None:
        chain = backward_order.new_chain()
        before: list[host_inputs.HostInputs] = []
        for segment, release in zip(self._segments, self._releases):
            run = functools.partial(segment, training=training)
            with host_inputs.noted() if self._offloads else contextlib.nullcontext([]) as stored:
                (made,) = chain.run(run, segment.needed, table) if chain else run(table)
            for waiting in before:
                made = [waiting.ahead(tensor) for tensor in made]
            before = stored
            table.update(zip(segment.produced, made))
            for ref in release:
                del table[ref]


@dataclasses.dataclass(frozen=True)
class _SegmentRunner:
    """Runs one segment on a table: the tensors that it needs of it, those that it produces, and the block."""

    needed: tuple[Ref, ...]
    produced: tuple[Ref, ...]
    block: Callable

    def __call__(self, table: Mapping[Ref, Any], training: bool | None) -> list[list]:
        """What it makes, as a row of one; see `BackwardChain.run`."""
        tensors = [table[ref] for ref in self.needed]
        return [self.block(*tensors, training=training)]


def _build(
    options: RunOptions, segment: Segment, number: str, kinds: shared_traces.Kinds, stored: Collection[Ref]
) -> _SegmentRunner:
    name = f"segment {number}, {segment}"
    function, replay_fn = _SegmentFunction(options, segment), None
    if segment.inner is not None:
        # Not compiled: a replay is either traced as a whole or meant to run op by op.
        uncompiled = dataclasses.replace(options, compiled=False)
        inner = _SegmentChain(uncompiled, segment.inner.segments, function.produced, f"{number}.")
        replay_fn = functools.partial(function.run_by, inner)
    member = first = None
    if options.watch is None:  # A watched segment reports the names of its layers, so it shares no traces.
        kind_now = functools.partial(
            shared_traces.signature, options.program, segment, function.nodes, function.needed, function.produced
        )
        member = shared_traces.Member(options.program, function.nodes, kind_now)
        first = kinds.first_like(member)
    made = block(
        member.noting(function) if member is not None and first is None else function,
        name=name,
        replay=segment.mode == "recompute",
        compiled=options.compiled,
        replay_fn=replay_fn,
        settings=function.settings,
        copied=segment.mode == "recompute" and options.watch is None,
        selective=segment.selective,
        on_host=tuple(
            i
            for i, ref in enumerate(function.needed)
            if segment.offload and ref not in stored and ref.name not in segment.on_device
        ),
        share_traces_with=first,
        trained=options.trained,
        owner=options.program.model,
    )
    if member is not None:
        kinds.add(member, made.calls)
    return _SegmentRunner(function.needed, function.produced, made)


class _SegmentFunction:
    """The nodes of a segment, in the order in which they run, as a function of what they read from outside."""

    def __init__(self, options: RunOptions, segment: Segment) -> None:
        watch = taken_results.note_boundary if segment.selective else None
        self._program, self._watch = options.program, options.watch or watch
        self.nodes = segment_boundaries.leaf_nodes(segment)
        boundary = segment_boundaries.boundary_tensors(options.program.graph, self.nodes)
        self.needed, self.produced, self._release = boundary
        self.settings = layer_settings.Settings(options.program.layers(self.nodes))

    def __call__(self, *tensors: tf.Tensor, training: bool | None) -> list[Any]:
        table = dict(zip(self.needed, tensors))
        with self.settings.watched():
            self._program.run(self.nodes, table, training, self._release, self._watch)
        return [table[ref] for ref in self.produced]

    def run_by(self, inner: _SegmentChain, *tensors: tf.Tensor, training: bool | None) -> list[Any]:
        """Run the same nodes by an inner plan."""
        table = dict(zip(self.needed, tensors))
        inner(table, training)
        return [table[ref] for ref in self.produced]
