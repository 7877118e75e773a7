"""Run a functional model by a plan of its layers: one pair, cut where the segments end."""

import bisect
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.graph import Ref
from tfgc._core.plan import Plan
from tfgc._core.segments import Segment
from tfgc._errors import PlanMismatchError
from tfgc._framework import call_checks, private_api, whole_steps
from tfgc._pairs.code import Code
from tfgc._pairs.joint import mark
from tfgc._pairs.pairs import Pairs
from tfgc._pairs.reading import Reading
from tfgc._pairs.segments import Planned
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._step.step import Step, Tensor
from tfgc._tracing import keras_graph
from tfgc._training import plan_report, segment_boundaries


class Runner:
    """A model's `call`, run by a plan.

    A call on a model whose graph has changed, such as a Sequential after `add`, follows where the plan still fits.

    Args:
        model: A functional model.
        plan: The plan.
        under_tapes: Whether calls with `training=False` run by the plan, too, if a tape records (see `LayerCall`).
    """

    def __init__(self, model: keras.Model, plan: Plan, *, under_tapes: bool = False, **_: Any) -> None:
        self._original = type(model).call
        self._under_tapes = under_tapes
        self.model = model
        self.use(plan)

    def use(self, plan: Plan) -> None:
        """Run by another plan from now on; what was traced has to be traced again."""
        program = keras_graph.Program(self.model)
        plan.check(program.graph)
        plan_report.warn_of_host(self.model.name, plan)
        self.plan, self.program = plan, program
        self._run = _Planned(program, plan)

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
        made = self._run(list(table.values()), training)
        return self.program.collect(dict(zip(self.program.outputs, made)))

    call.is_patched_call = True


class _Planned:
    """The nodes of a model, in the order of a plan, as pairs that are cut by it."""

    def __init__(self, program: keras_graph.Program, plan: Plan) -> None:
        self._program, self._plan = program, plan
        self._parts = list(_leaves(plan.segments))
        nodes = [name for part in self._parts for name in part]
        _, _, release = segment_boundaries.boundary_tensors(program.graph, nodes)
        kept = set(program.outputs)
        self._release = {name: [ref for ref in refs if ref not in kept] for name, refs in release.items()}
        self._inputs = [Ref(t.name) for t in program.function.inputs]
        self._pairs = Pairs(self._nodes, program.model.name, Code(program.model), self._planned)

    def __call__(self, tensors: Sequence[Any], training: bool | None) -> list[Any]:
        return self._pairs(tensors, training=training)

    def _nodes(self, tensors: Sequence[Any], training: bool | None) -> list[Any]:
        table = dict(zip(self._inputs, tensors))
        for part in self._parts:
            self._program.run(part, table, training, self._release)
            mark()
        return [table[ref] for ref in self._program.outputs]

    def _planned(self, reading: Reading, _: Any) -> Planned:
        traced = reading.as_run()
        ends = iter([max((i for i in traced.order if i < begin), default=-1) for begin in reading.marks])
        cuts = list(_cuts(self._plan.segments, ends, reading))
        step = ordered(recomputed(traced, cuts))
        offloaded = {k for k, segment in enumerate(self._plan.segments) if segment.offload}
        hosted = _hosted(step, cuts, offloaded) if offloaded else ()
        return Planned(step, None, frozenset(map(step.tensor_name, hosted)), frozenset(cut.behind for cut in cuts))


def _hosted(step: Step, cuts: Sequence[Cut], offloaded: Collection[int]) -> Iterator[Tensor]:
    """What is read late, and in the forward part by none behind one of these segments, whose input it is."""
    ends = [cut.behind for cut in cuts]
    late = {i for i, op in step.ops.items() if op.segment or op.is_gradient}
    last: dict[Tensor, int] = {}  # the last segment that reads a buffer
    for i in step.ops:
        for buffer in step.reads[i] if i not in late else ():
            last[buffer] = max(last.get(buffer, 0), bisect.bisect_left(ends, i))
    for tensor in {t for i in late for t in step.ops[i].inputs}:
        buffer = step.buffer(tensor)
        if tensor[0] in late or not step.is_planned(buffer) or last.get(buffer) not in offloaded:
            continue
        if bisect.bisect_left(ends, buffer[0]) < last[buffer]:
            yield tensor


def _leaves(segments: Sequence[Segment]) -> Iterator[tuple[str, ...]]:
    """The nodes of the innermost segments."""
    for segment in segments:
        if segment.inner is None:
            yield segment.nodes
        else:
            yield from _leaves(segment.inner.segments)


def _cuts(segments: Sequence[Segment], ends: Iterator[int], reading: Reading) -> Iterator[Cut]:
    """The cuts at the ends of segments, the innermost of which end at these operations."""
    for segment in segments:
        inside = () if segment.inner is None else tuple(_cuts(segment.inner.segments, ends, reading))
        behind = inside[-1].behind if inside else next(ends)
        stores = reading.products if segment.selective else ()
        yield Cut(behind, segment.mode == "keep", inside[:-1], True, stores)
