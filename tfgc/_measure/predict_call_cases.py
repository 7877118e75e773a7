"""Plan and predict cases by the calls of a model's layers; nothing is trained.

That is all cases of a model without a graph, and given plans by calls of one that has a graph.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfgc._calls.call_plans import CallPlans
from tfgc._core.plan import Plan
from tfgc._errors import PlanMismatchError, TfgcError
from tfgc._measure import any_model, examples, predict_cases
from tfgc._planning import budgets, by_calls, sweep
from tfgc._records.job import Case, PredictionJob
from tfgc._records.measurement import Predicted
from tfgc._records.reply import CasePrediction, CasePredictions
from tfgc._simulate import simulator


def applies_to(model: keras.Model, example: Any) -> bool:
    """Whether the cases of a model are planned by calls; raise if they are to be and cannot."""
    if example is None:
        by_calls.check_has_graph(model)
    return example is not None


def predict_call_cases(model: keras.Model, job: PredictionJob) -> CasePredictions:
    """Return the `CasePredictions` of a `PredictionJob`.

    Raises:
        PlanMismatchError: If a given plan is for another model.
    """
    any_model.check(model)
    first = job.cases[0]
    example = any_model.completed(model, first.example, first.batch_size)
    data = examples.batch(example, first.batch_size)
    modes = sorted({False, *(case.mode == "xla" for case in job.cases)})
    networks = {xla: _Network(model, CallPlans(model, data, xla=xla), budgets.fixed_bytes(model)) for xla in modes}
    cases = _predicted(networks, job.cases)
    if not job.front:
        return CasePredictions(cases)
    network = networks[False]
    others = [(name, plan) for name, plan in network.plans.items() if isinstance(plan, Plan)]
    return CasePredictions(
        cases, sweep.front_by_calls(network.call_plans, network.fixed, job.network, budgets=job.marks, plans=others)
    )


def predict_functional_cases(model: keras.Model, job: PredictionJob) -> CasePredictions:
    """The `CasePredictions` of a model with a graph, some of whose given plans may be by the calls of its layers.

    Those are in no front: its plans and the plain step are read by nodes.
    """
    by_call = tuple(case for case in job.cases if case.plan is not None and Plan.from_json(case.plan).calls)
    if not by_call:
        return predict_cases.predict_cases(model, job)
    fixed, networks = budgets.fixed_bytes(model, "sgd"), {}
    for xla in sorted({case.mode == "xla" for case in by_call}):
        size, shapes = by_call[0].batch_size, by_call[0].input_shapes
        plans = by_calls.plans_of_functional(model, size, shapes, "xla" if xla else "graph")
        networks[xla] = _Network(model, plans, fixed)
    cases = _predicted(networks, by_call)
    found = predict_cases.predict_cases(
        model, dataclasses.replace(job, cases=tuple(case for case in job.cases if case.name not in cases))
    )
    return dataclasses.replace(found, cases={**found.cases, **cases})


def _predicted(networks: "Mapping[bool, _Network]", cases: Sequence[Case]) -> dict[str, CasePrediction]:
    """Predictions by the names of cases; of networks there is one that XLA compiles and one that it does not."""
    for case in cases:
        networks[case.mode == "xla"].check(case)
    return {case.name: networks[case.mode == "xla"].predict(case) for case in cases}


class _Network:
    """A model with its plans, each made when first needed.

    Attributes:
        call_plans: What makes them.
        fixed: Bytes of weights and optimizer slots.
        plans: Plans, or the errors of making them, by `Case.case`.
    """

    def __init__(self, model: keras.Model, call_plans: CallPlans, fixed: int) -> None:
        self._model, self.call_plans, self.fixed = model, call_plans, fixed
        self.plans: dict[str, Plan | TfgcError] = {}
        self._plain = call_plans.estimate(None, self.fixed)

    def check(self, case: Case) -> None:
        """Raise `PlanMismatchError` if the plan of a case is not for this model."""
        if case.plan is None:
            return
        try:
            self.plans[case.case] = self.call_plans.with_figures(Plan.from_json(case.plan))
        except PlanMismatchError as error:
            raise PlanMismatchError(f"{case.case}: {error}") from error

    def predict(self, case: Case) -> CasePrediction:
        """The `CasePrediction` of a case."""
        if case.strategy is None and case.plan is None:
            return CasePrediction(predicted=self._predicted(None, case.mode))
        if case.case not in self.plans:
            try:
                self.plans[case.case] = self._made(case)
            except TfgcError as error:
                self.plans[case.case] = error
        plan = self.plans[case.case]
        if isinstance(plan, TfgcError):
            return CasePrediction(error=str(plan))
        return CasePrediction(plan.to_json(), predict_cases.parts(plan), self._predicted(plan, case.mode))

    def _made(self, case: Case) -> Plan:
        budget = case.options.get("budget")
        if budget is None:
            return self.call_plans.least()
        return by_calls.fitting(self.call_plans, self._model, budget, self.fixed)

    def _predicted(self, plan: Plan | None, mode: str) -> Predicted | None:
        """The `Predicted` of a plan; None in modes that cannot be predicted."""
        if mode not in by_calls.MODES:
            return None
        step = self.call_plans.estimate(plan, self.fixed)
        floor_bytes, floor_node = self.call_plans.floor
        return Predicted(
            peak_bytes=simulator.allocated_bytes(step) - self.fixed,
            overhead=step.overhead,
            unit=step.unit,
            floor_bytes=floor_bytes,
            floor_node=floor_node,
            plain_bytes=self._plain.peak_bytes - self.fixed,
            buffer_bytes=step.peak_bytes - self.fixed,
            fixed_bytes=self.fixed,
        )
