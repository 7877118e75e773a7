"""Plan a network's cases and predict them, all from one reading of the model; nothing is trained.

Of a model without a graph of layers the step is traced.
"""

import functools
from collections.abc import Mapping

import keras

from tfgc._core.modes import PREDICTABLE
from tfgc._core.plan import Plan
from tfgc._core.segments import Segmentation
from tfgc._errors import TfgcError
from tfgc._measure import any_model, examples
from tfgc._planning import ahead, annotated, budgets, planner, sweep
from tfgc._planning.node_plans import NodePlans
from tfgc._planning.request import Request
from tfgc._planning.step_ahead import StepAhead
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
    given = {case.case: Plan.from_json(case.plan) for case in job.cases if case.plan is not None}
    of_steps: dict[str, CasePrediction] = {}
    step: StepAhead | None = None
    if any_model.takes_example(model, first.example):
        data = examples.batch(any_model.completed(model, first.example, batch), batch)
        step, fixed = ahead.plans_for(model, None, data), budgets.fixed_bytes(model)
        sweep.check(given.items(), step.check)
    else:
        fixed, declared = budgets.fixed_bytes(model, "sgd"), keras_graph.read(model)
        of_steps = {name: _of_step(plan) for name, plan in given.items() if plan.operations}
        sweep.check([pair for pair in given.items() if pair[0] not in of_steps], lambda plan: plan.check(declared))
    resident = budgets.resident_bytes(model)

    @functools.cache
    def reading(xla: bool) -> _Reading:
        """The cases as XLA compiles the step or in a graph."""
        if step is not None:
            return _Reading(step, fixed, resident, given)
        graph = annotated.graph_of(model, batch, sizes, None, whole_step=True, loss="mse", optimizer="sgd", xla=xla)
        return _Reading(NodePlans(graph), fixed, resident, given)

    found = {
        case.name: of_steps.get(case.case) or reading(case.mode == "xla" and step is None).predict(case)
        for case in job.cases
    }
    return CasePredictions(found, reading(False).front(job) if job.front else None)


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
    Those that are not `given` are made when first needed.
    """

    def __init__(self, known: NodePlans | StepAhead, fixed: int, resident: int, given: Mapping[str, Plan]) -> None:
        self._known, self._fixed, self._resident, self._given = known, fixed, resident, given
        self._plans: dict[str, Plan | TfgcError] = {}

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
        if mode not in (ahead.MODES if isinstance(known, StepAhead) else PREDICTABLE):
            return None
        step = (known if isinstance(known, StepAhead) else NodePlans(known.graph, mode)).estimate(plan, self._fixed)
        held = self._fixed + (known.input_bytes if isinstance(known, StepAhead) else 0)
        return Predicted(
            peak_bytes=simulator.allocated_bytes(step) - held,
            overhead=step.overhead,
            unit=step.unit,
            floor_bytes=floor_bytes,
            floor_node=floor_node,
            plain_bytes=self._plain.peak_bytes - held,
            buffer_bytes=step.peak_bytes - held,
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
        if isinstance(known, StepAhead):
            searched = case.strategy in ("optimal", "budget") and not options
            return ahead.chosen(known, Request(None if searched else case.strategy, asked, options), self._fixed)
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
