"""Plan a network's cases and predict them, all from one reading of the model; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import keras

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.modes import PREDICTABLE
from tfgc._core.plan import Plan
from tfgc._core.segments import Segmentation
from tfgc._errors import PlanMismatchError, TfgcError
from tfgc._planning import annotated, budgets, links, planner, sweep
from tfgc._records.front import FrontRecord
from tfgc._records.job import Case, PredictionJob
from tfgc._records.measurement import Predicted, SegmentSummary
from tfgc._records.reply import CasePrediction, CasePredictions
from tfgc._simulate import outlooks, simulator
from tfgc._tracing import keras_graph
from tfgc.strategies._frontier import Frontier


def predict_cases(model: keras.Model, job: PredictionJob) -> CasePredictions:
    """Return the `CasePredictions` of a `PredictionJob` for its model, which is not changed.

    Args:
        model: The model that `job` names.
        job: The cases, all at one batch size.

    Raises:
        PlanMismatchError: If a given plan is for another model.
    """
    given, first = _given(model, job), job.cases[0]
    fixed = budgets.fixed_bytes(model, "sgd")

    def network(xla: bool) -> _Network:
        graph = annotated.graph_of(
            model, first.batch_size, first.input_shapes, None, measure=job.measure, whole_step=True, loss="mse", xla=xla
        )
        return _Network(graph, fixed, given)

    networks = {xla: network(xla) for xla in sorted({False, *(case.mode == "xla" for case in job.cases)})}
    cases = {case.name: predict_case(case, networks[case.mode == "xla"]) for case in job.cases}
    return CasePredictions(cases, networks[False].front_record(job) if job.front else None)


def predict_case(case: Case, network: _Network) -> CasePrediction:
    """The `CasePrediction` of one case of a `_Network`."""
    try:
        plan = network.plan_of(case)
    except TfgcError as error:
        return CasePrediction(error=str(error))
    if plan is None:
        return CasePrediction()
    predicted = network.predicted(plan, case.mode) if case.mode in PREDICTABLE else None
    if not _is_planned(case):
        return CasePrediction(predicted=predicted)
    return CasePrediction(plan.to_json(), parts(plan), predicted)


def _given(model: keras.Model, job: PredictionJob) -> dict[str, Plan]:
    """The plans that are given, by `Case.case`."""
    declared, given = keras_graph.read(model), {}
    for case in job.cases:
        if case.plan is not None and case.case not in given:
            given[case.case] = Plan.from_json(case.plan)
            try:
                given[case.case].check(declared)
            except PlanMismatchError as error:
                raise PlanMismatchError(f"{case.case}: {error}") from error
    return given


def parts(plan: Segmentation) -> tuple[SegmentSummary, ...]:
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
            inner=() if segment.inner is None else parts(segment.inner),
        )
        for segment in plan.segments
    )


def _is_planned(case: Case) -> bool:
    return case.plan is not None or case.strategy is not None or case.target_ratio is not None


class _Network:
    """One annotated graph and its plans, each made when first needed."""

    def __init__(self, graph: Graph, fixed: int, given: dict[str, Plan]) -> None:
        self.graph, self.fixed = graph, fixed
        self.plain = Plan.from_cuts(graph, [], strategy="keep_all")
        self.plain_step = simulator.estimate(graph, self.plain, fixed)
        self.floor, self.floor_node = outlooks.floor(graph)
        self._given = given
        self._plans: dict[str, Plan | TfgcError | None] = {}
        self._frontiers: dict[tuple[str, tuple[tuple[str, Any], ...]], Frontier] = {}

    def plan_of(self, case: Case) -> Plan | None:
        """The plan of a case, or the error of planning it, the same in all modes; None for peers."""
        if case.case not in self._plans:
            try:
                plan = self._planned(case)
                self._plans[case.case] = None if plan is None else outlooks.with_outlook(self.graph, plan)
            except TfgcError as error:
                self._plans[case.case] = error
        found = self._plans[case.case]
        if isinstance(found, TfgcError):
            raise found
        return found

    def _planned(self, case: Case) -> Plan | None:
        if case.target_ratio is not None:
            assert not callable(case.strategy)  # It has no front of plans to choose from.
            return self.at_ratio(case.target_ratio, case.strategy or "budget", case.options)
        if case.strategy is not None:
            options = dict(case.options)
            asked = options.pop("budget", None)
            total = None if asked is None else budgets.budget_bytes(asked, lambda: self.plain_step.needed_bytes)
            budget = None if total is None else budgets.StepBudget(total, self.fixed)
            return planner.choose(self.graph, case.strategy, budget, options)
        if case.plan is None and case.peer is None and case.case == "plain":
            return self.plain
        return self._given.get(case.case)

    def frontier(self, strategy: str = "budget", options: Mapping[str, Any] = MappingProxyType({})) -> Frontier:
        """The plans from the least peak to the plain step."""
        asked = strategy, tuple(sorted(options.items()))
        if asked not in self._frontiers:
            self._frontiers[asked] = strategies.frontier(self.graph, strategy, **links.measured(options))
        return self._frontiers[asked]

    def at_ratio(self, share: float, strategy: str, options: Mapping[str, Any]) -> Plan:
        """The plan of least work at this share of what the allocator holds above `fixed`; else the one of least."""
        optimal = planner.choose(self.graph, "optimal", None, {})
        return self.frontier(strategy, options).at_ratio(share, optimal)

    def front_record(self, job: PredictionJob) -> FrontRecord:
        """The `FrontRecord`, with the plans of the job's cases added."""
        names = {case.case for case in job.cases if _is_planned(case)} - {"optimal"}
        others = [(name, plan) for name, plan in self._plans.items() if isinstance(plan, Plan) and name in names]
        return sweep.front_of(
            self.graph, self.fixed, job.network, budgets=job.marks, plans=others, frontier=self.frontier()
        )

    def predicted(self, plan: Plan, mode: str) -> Predicted:
        """The `Predicted` of a plan in a mode."""
        step = simulator.estimate(self.graph, plan, self.fixed, mode)
        return Predicted(
            peak_bytes=simulator.allocated_bytes(step) - self.fixed,
            overhead=step.overhead,
            unit=step.unit,
            floor_bytes=self.floor,
            floor_node=self.floor_node,
            plain_bytes=self.plain_step.peak_bytes - self.fixed,
            buffer_bytes=step.peak_bytes - self.fixed,
            fixed_bytes=self.fixed,
            host_bytes=step.host_bytes,
        )
