"""Plans for the `train_step` that a functional model defines, which may call the model several times.

All calls run by the same plan, so each of its segments is replayed once in every call. A pair of images that one
encoder takes, as in metric learning, needs twice what one call of it needs.

Segments count as whole ones: nested replays and host memory, which only named strategies and options bring
here, need less than predicted.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import keras

from tfgc._calls import descriptions, options, parts
from tfgc._calls.call_plans import CallPlans
from tfgc._calls.choice import Judged, Search
from tfgc._calls.recording import Trace
from tfgc._calls.simulation import Outcome
from tfgc._core.plan import Plan

Shape: TypeAlias = tuple[int | None, ...]
# Plans to choose from.
_MOST = 64
# Share by which a step may exceed one call of its model and still be planned as that call.
_LITTLE = 0.05


class OwnStep(NamedTuple):
    """What a model's own `train_step` does with a batch."""

    batch: Any  # `tf.TensorSpec`s of it
    trace: Trace | None  # None where the step cannot be traced symbolically
    seconds: float = 0.0  # how long it took to trace


def plans_for(
    model: keras.Model, step: OwnStep | None, shapes: Iterable[Shape], *, xla: bool = False
) -> "OwnStepPlans | None":
    """The plans for the `train_step` that a functional model's class defines.

    None if the step cannot be traced symbolically, if it calls the model nowhere or in no call that trains, or if it
    makes exactly one call of a layer, that of the model with inputs of these shapes: the plan of that call is then the
    plan of the step.
    """
    if step is None or step.trace is None:
        return None
    called = [call for call in step.trace.root.children if isinstance(call.layer, keras.Layer)]
    if [call.layer for call in called] == [model] and Counter(called[0].inputs) == Counter(shapes):
        return None
    if all(call.layer is not model for call in called):
        return None
    plans = OwnStepPlans(model, step.batch, trace=step.trace, xla=xla)
    return plans if plans.calls else None


class OwnStepPlans(CallPlans):
    """Plans by segments for a functional model in all calls that its own `train_step` makes of it."""

    def __init__(self, model: keras.Model, example: Any, *, trace: Trace, xla: bool = False) -> None:
        super().__init__(model, example, trace=trace, xla=xla)
        calls = options.trained_calls(self.step)[model]
        # An explicit `training=False` runs the original code.
        self.calls = [call for call in calls if call.training is not False]

    def is_one_call_of(self, needed_bytes: int, fixed: int) -> bool:
        """Whether this step needs about what a plain step of one call does, so that the plan of one call will do."""
        # A layer that augments the batch, for example, adds next to nothing.
        return len(self.calls) == 1 and self.plain_bytes(fixed) <= (1 + _LITTLE) * needed_bytes

    @functools.cached_property
    def _search(self) -> Search:
        names: dict[str, keras.Layer] = {self.model.name: self.model}
        return Search(self.simulator, parts.planned_parts(names, {self.model: self.calls}, self.step.xla, _MOST))

    def _chosen(self, plan: Plan) -> list[options.Option]:
        if not any(segment.mode == "recompute" for segment in plan.segments):
            return []
        return [parts.planned_part(self.model.name, self.model, self.calls, plan)]

    def with_figures(self, plan: Plan) -> Plan:
        return self._of_step(plan, self.judged(plan).outcome)

    def _plan(self, judged: Judged) -> Plan:
        chosen = next((option.plan for option in judged.choice if option.plan is not None), None)
        if chosen is None:
            graph = parts.graph_of(self.model, self.calls[0], xla=self.step.xla)
            chosen = Plan.from_cuts(graph, [], strategy="keep_all")
        return self._of_step(chosen, judged.outcome)

    def _of_step(self, plan: Plan, outcome: Outcome) -> Plan:
        """A plan with the outlook of the whole step, which says if XLA compiles that."""
        outlook = descriptions.outlook(self.step, outcome, self.simulator.outcome(()), self.named)
        mode = {"mode": "xla"} if self.step.xla else {}
        return dataclasses.replace(plan, outlook=outlook, options={**plan.options, **mode})
