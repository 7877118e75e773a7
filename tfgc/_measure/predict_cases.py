"""Plan a network's cases and predict them, all from one trace of its step; nothing is trained."""

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
from tfgc._records.job import Case, CasePrediction, CasePredictions, PredictionJob
from tfgc._records.predicted import Predicted, SegmentSummary


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
    plans: dict[str, Plan | TfgcError] = {}
    found = {case.name: _of_case(step, case, given, plans) for case in job.cases}
    made = [(name, plan) for name, plan in plans.items() if isinstance(plan, Plan)]
    front = sweep.front_of(step, job.network, budgets=job.marks, others=made) if job.front else None
    return CasePredictions(found, front)


def _of_case(
    step: StepAhead, case: Case, given: Mapping[str, Plan], plans: dict[str, Plan | TfgcError]
) -> CasePrediction:
    """The `CasePrediction` of a case. Plans that are not `given` are made once, and kept in `plans` by `Case.case`."""
    if case.plan is None and case.strategy is None:
        return CasePrediction(predicted=_predicted(step, None, case.mode))
    if case.case not in plans:
        try:
            plans[case.case] = step.with_figures(_planned(step, case) if case.plan is None else given[case.case])
        except TfgcError as error:
            plans[case.case] = error
    plan = plans[case.case]
    if isinstance(plan, TfgcError):
        return CasePrediction(error=str(plan))
    return CasePrediction(plan.to_json(), _parts(plan), _predicted(step, plan, case.mode))


def _predicted(known: StepAhead, plan: Plan | None, mode: str) -> Predicted | None:
    """The `Predicted` of a plan; None in modes that cannot be predicted."""
    if mode not in PREDICTABLE:
        return None
    step, held, (floor_bytes, floor_node) = known.estimate(plan), known.held_bytes, known.floor
    return Predicted(
        peak_bytes=step.peak_bytes - held,
        overhead=step.overhead,
        unit="flop",
        floor_bytes=floor_bytes,
        floor_node=floor_node,
        plain_bytes=known.plain_bytes - held,
        fixed_bytes=known.fixed_bytes,
        host_bytes=step.host_bytes,
    )


def _planned(step: StepAhead, case: Case) -> Plan:
    """The plan of a case whose plan is not given."""
    options = dict(case.options)
    budget = options.pop("budget", None)
    searched = case.strategy in ("optimal", "budget") and not options
    return ahead.chosen(step, Request(None if searched else case.strategy, budget, options))


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
