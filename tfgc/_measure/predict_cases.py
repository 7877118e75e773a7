"""Plan a network's cases and predict them, all from one trace of its step; nothing is trained."""

import functools
from collections.abc import Mapping

import keras

from tfgc._core.modes import PREDICTABLE
from tfgc._core.plan import Plan
from tfgc._core.segments import Segmentation
from tfgc._errors import TfgcError
from tfgc._measure import any_model, examples
from tfgc._planning import ahead, sweep
from tfgc._planning.request import Request
from tfgc._planning.step_ahead import StepAhead
from tfgc._records.front import FrontRecord
from tfgc._records.job import Case, CasePrediction, CasePredictions, PredictionJob
from tfgc._records.predicted import Predicted, SegmentSummary
from tfgc._simulate.simulator import Prediction


def predict_cases(model: keras.Model, job: PredictionJob) -> CasePredictions:
    """What a `PredictionJob` finds for its model, which is not changed; given plans have to be for this model."""
    first = job.cases[0]
    batch, sizes = first.batch_size, first.input_shapes
    given = {case.case: Plan.from_json(case.plan) for case in job.cases if case.plan is not None}
    if any_model.takes_example(model, first.example):
        data = examples.batch(any_model.completed(model, first.example, batch), batch)
        step = ahead.plans_for(model, None, data)
    else:  # as `training_run` trains it
        step = ahead.plans_for(model, batch, None, "graph", sizes, "mse", "sgd")
    sweep.check(given.items(), step.check)
    reading = _Reading(step, given)
    found = {case.name: reading.predict(case) for case in job.cases}
    return CasePredictions(found, reading.front(job) if job.front else None)


class _Reading:
    """The step of a model at one batch, and the plans of cases by `Case.case`.

    Those that are not `given` are made when first needed.
    """

    def __init__(self, known: StepAhead, given: Mapping[str, Plan]) -> None:
        self._known, self._given = known, given
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
        if mode not in PREDICTABLE:
            return None
        step, held = known.estimate(plan), known.held_bytes
        return Predicted(
            peak_bytes=step.peak_bytes - held,
            overhead=step.overhead,
            unit="flop",
            floor_bytes=floor_bytes,
            floor_node=floor_node,
            plain_bytes=self._plain.peak_bytes - held,
            fixed_bytes=known.fixed_bytes,
            host_bytes=step.host_bytes,
        )

    @functools.cached_property
    def _plain(self) -> Prediction:
        return self._known.estimate(None)

    def _planned(self, case: Case) -> Plan:
        """The plan of a case whose plan is not given."""
        options = dict(case.options)
        budget = options.pop("budget", None)
        searched = case.strategy in ("optimal", "budget") and not options
        return ahead.chosen(self._known, Request(None if searched else case.strategy, budget, options))

    def front(self, job: PredictionJob) -> FrontRecord:
        """The `FrontRecord`, with the plans that were made."""
        made = [(name, plan) for name, plan in self._plans.items() if isinstance(plan, Plan)]
        return sweep.front_of(self._known, job.network, budgets=job.marks, others=made)


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
