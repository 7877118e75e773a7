"""Plan a network's cases and predict them, all from one reading of the model; nothing is trained.

Cases of a model without a graph, and given plans by calls of any model, are read by the calls of its layers.
"""

import functools
from collections.abc import Mapping
from typing import Any

import keras

from tfgc._calls.call_plans import CallPlans
from tfgc._core.modes import PREDICTABLE
from tfgc._core.plan import Plan
from tfgc._core.segments import Segmentation
from tfgc._errors import TfgcError
from tfgc._measure import any_model, examples
from tfgc._planning import annotated, budgets, by_calls, planner, sweep
from tfgc._planning.node_plans import AnyPlans, NodePlans
from tfgc._records.front import FrontRecord
from tfgc._records.job import Case, CasePrediction, CasePredictions, PredictionJob
from tfgc._records.predicted import Predicted, SegmentSummary
from tfgc._simulate import simulator
from tfgc._simulate.simulator import Prediction
from tfgc._tracing import keras_graph


def predict_cases(model: keras.Model, job: PredictionJob) -> CasePredictions:
    """What a `PredictionJob` finds for its model, which is not changed; given plans have to be for this model."""
    first = job.cases[0]
    batch, sizes = first.batch_size, first.input_shapes
    plans = {case.case: Plan.from_json(case.plan) for case in job.cases if case.plan is not None}
    given = {name: plan for name, plan in plans.items() if not plan.operations}
    of_steps = {name: _of_step(plan) for name, plan in plans.items() if plan.operations}
    data: Any = None
    of_calls: dict[str, Plan] = {}  # of a functional model, and in no front, which is read by nodes
    if any_model.takes_example(model, first.example):
        data = examples.batch(any_model.completed(model, first.example, batch), batch)
        fixed = budgets.fixed_bytes(model)
    else:
        fixed, declared = budgets.fixed_bytes(model, "sgd"), keras_graph.read(model)
        of_calls = {name: plan for name, plan in given.items() if plan.calls}
        sweep.check([pair for pair in given.items() if pair[0] not in of_calls], lambda plan: plan.check(declared))

    resident = budgets.resident_bytes(model)

    @functools.cache
    def reading(by_call: bool, xla: bool) -> _Reading:
        """The cases of given plans by calls, or the others, as XLA compiles the step or in a graph."""
        if data is not None:
            return _Reading(CallPlans(model, data, xla=xla), fixed, resident, given)
        if by_call:
            plans = by_calls.plans_of_functional(model, batch, sizes, "xla" if xla else "graph", optimizer="sgd")
            return _Reading(plans, fixed, resident, of_calls)
        graph = annotated.graph_of(model, batch, sizes, None, whole_step=True, loss="mse", optimizer="sgd", xla=xla)
        return _Reading(NodePlans(graph), fixed, resident, given)

    found = {
        case.name: of_steps.get(case.case) or reading(case.case in of_calls, case.mode == "xla").predict(case)
        for case in job.cases
    }
    return CasePredictions(found, reading(False, False).front(job) if job.front else None)


def _of_step(plan: Plan) -> CasePrediction:
    """What a plan of the operations of a step says itself."""
    outlook = plan.outlook
    predicted = outlook and Predicted(
        peak_bytes=outlook.peak_bytes,
        overhead=outlook.overhead,
        unit=outlook.unit,
        floor_bytes=outlook.floor_bytes,
        floor_node=outlook.floor_node,
        plain_bytes=outlook.plain_bytes,
    )
    return CasePrediction(plan.to_json(), _parts(plan), predicted)


class _Reading:
    """A model at one batch, and the plans of cases by `Case.case`.

    It has `fixed` bytes of weights and slots, of which `resident` are in memory while it is read.
    Those that are not `given` are made when first needed; a given one by calls has to be for this model.
    """

    def __init__(self, known: AnyPlans, fixed: int, resident: int, given: Mapping[str, Plan]) -> None:
        self._known, self._fixed, self._resident, self._given = known, fixed, resident, given
        self._plans: dict[str, Plan | TfgcError] = {}
        if isinstance(known, CallPlans):
            sweep.check(given.items(), known.with_figures)

    def predict(self, case: Case) -> CasePrediction:
        """The `CasePrediction` of a case."""
        if case.plan is None and case.strategy is None:
            return CasePrediction(predicted=self._predicted(None, case.mode))
        if case.case not in self._plans:
            try:
                made = self._planned(case) if case.plan is None else self._given[case.case]
                self._plans[case.case] = self._known.with_figures(made)
            except TfgcError as error:
                self._plans[case.case] = error
        plan = self._plans[case.case]
        if isinstance(plan, TfgcError):
            return CasePrediction(error=str(plan))
        return CasePrediction(plan.to_json(), _parts(plan), self._predicted(plan, case.mode))

    def _predicted(self, plan: Plan | None, mode: str) -> Predicted | None:
        """The `Predicted` of a plan; None in modes that cannot be predicted."""
        known, (floor_bytes, floor_node) = self._known, self._known.floor
        if mode not in (by_calls.MODES if isinstance(known, CallPlans) else PREDICTABLE):
            return None
        step = (known if isinstance(known, CallPlans) else NodePlans(known.graph, mode)).estimate(plan, self._fixed)
        return Predicted(
            peak_bytes=simulator.allocated_bytes(step) - self._fixed,
            overhead=step.overhead,
            unit=step.unit,
            floor_bytes=floor_bytes,
            floor_node=floor_node,
            plain_bytes=self._plain.peak_bytes - self._fixed,
            buffer_bytes=step.peak_bytes - self._fixed,
            fixed_bytes=self._fixed,
            host_bytes=step.host_bytes,
        )

    @functools.cached_property
    def _plain(self) -> Prediction:
        return self._known.estimate(None, self._fixed)

    def _planned(self, case: Case) -> Plan:
        """The plan of a case whose plan is not given."""
        known, options = self._known, dict(case.options)
        asked = options.pop("budget", None)
        if isinstance(known, CallPlans):
            return by_calls.chosen(known, asked, self._fixed)
        assert case.strategy is not None
        budget = None
        if asked is not None:
            total = budgets.budget_bytes(asked, lambda: self._plain.needed_bytes, self._resident)
            budget = budgets.StepBudget(total, self._fixed)
        return planner.choose(known, case.strategy, budget, options)

    def front(self, job: PredictionJob) -> FrontRecord:
        """The `FrontRecord`, with the plans that were made."""
        made = [(name, plan) for name, plan in self._plans.items() if isinstance(plan, Plan)]
        if isinstance(self._known, NodePlans):
            made = [("optimal", self._known.least()), *(pair for pair in made if pair[0] != "optimal")]
        return sweep.front_of(self._known, self._fixed, job.network, budgets=job.marks, others=made)


def _parts(plan: Segmentation) -> tuple[SegmentSummary, ...]:
    """The segments of a plan, as they are drawn."""
    return tuple(
        SegmentSummary(
            first=segment.nodes[0],
            last=segment.nodes[-1],
            nodes=len(segment.nodes),
            mode=segment.mode,
            stored_bytes=segment.stored_bytes,
            inside_bytes=segment.inside_bytes,
            host_bytes=segment.host_bytes or 0,
            inner=() if segment.inner is None else _parts(segment.inner),
        )
        for segment in plan.segments
    )
