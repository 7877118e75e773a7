"""One reading of a model, by nodes or by the calls of its layers: the plans of cases, and what is predicted of them."""

import abc
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tfgc import strategies
from tfgc._calls.call_plans import CallPlans
from tfgc._core.graph import Graph
from tfgc._core.modes import PREDICTABLE
from tfgc._core.plan import Plan
from tfgc._core.segments import Segmentation
from tfgc._errors import TfgcError
from tfgc._planning import budgets, by_calls, links, planner, sweep
from tfgc._records.front import FrontRecord
from tfgc._records.job import Case, PredictionJob
from tfgc._records.measurement import Predicted, SegmentSummary
from tfgc._records.reply import CasePrediction
from tfgc._simulate import outlooks, simulator
from tfgc._simulate.simulator import Prediction
from tfgc.strategies._frontier import Frontier


class Reading(abc.ABC):
    """A model at one batch, and its plans by `Case.case`, each made when first needed.

    Args:
        fixed: Bytes of weights and optimizer slots.
        given: The plans that are given.
        floor: The bytes that no plan gets below, and the node or call that sets them.
        modes: Those that can be predicted.
    """

    def __init__(self, fixed: int, given: Mapping[str, Plan], floor: tuple[int, str], modes: tuple[str, ...]) -> None:
        self.fixed, self._given, self._floor, self._modes = fixed, given, floor, modes
        self.plans: dict[str, Plan | TfgcError] = {}

    def predict(self, case: Case) -> CasePrediction:
        """The `CasePrediction` of a case; empty for peers."""
        if case.plan is None and case.strategy is None and case.target_ratio is None:
            return CasePrediction(predicted=None if case.peer else self._predicted(None, case.mode))
        if case.case not in self.plans:
            try:
                made = self.planned(case) if case.plan is None else self.with_figures(self._given[case.case])
                self.plans[case.case] = made
            except TfgcError as error:
                self.plans[case.case] = error
        plan = self.plans[case.case]
        if isinstance(plan, TfgcError):
            return CasePrediction(error=str(plan))
        return CasePrediction(plan.to_json(), parts(plan), self._predicted(plan, case.mode))

    def _predicted(self, plan: Plan | None, mode: str) -> Predicted | None:
        """The `Predicted` of a plan; None in modes that cannot be predicted."""
        if mode not in self._modes:
            return None
        step = self.estimate(plan, mode)
        return Predicted(
            peak_bytes=simulator.allocated_bytes(step) - self.fixed,
            overhead=step.overhead,
            unit=step.unit,
            floor_bytes=self._floor[0],
            floor_node=self._floor[1],
            plain_bytes=self.plain.peak_bytes - self.fixed,
            buffer_bytes=step.peak_bytes - self.fixed,
            fixed_bytes=self.fixed,
            host_bytes=step.host_bytes,
        )

    @functools.cached_property
    def plain(self) -> Prediction:
        """The plain step."""
        return self.estimate(None, "graph")

    def made(self) -> list[tuple[str, Plan]]:
        """The plans by name, without the errors."""
        return [(name, plan) for name, plan in self.plans.items() if isinstance(plan, Plan)]

    @abc.abstractmethod
    def planned(self, case: Case) -> Plan:
        """The plan of a case whose plan is not given, with its figures."""

    @abc.abstractmethod
    def with_figures(self, plan: Plan) -> Plan:
        """A plan with its figures for this batch."""

    @abc.abstractmethod
    def estimate(self, plan: Plan | None, mode: str) -> Prediction:
        """The step by a plan, or the plain one."""

    @abc.abstractmethod
    def front(self, job: PredictionJob) -> FrontRecord:
        """The `FrontRecord`, with the plans that were made."""


class ByNodes(Reading):
    """An annotated graph."""

    def __init__(self, graph: Graph, fixed: int, given: Mapping[str, Plan]) -> None:
        super().__init__(fixed, given, outlooks.floor(graph), PREDICTABLE)
        self._graph, self._keep_all = graph, Plan.from_cuts(graph, [], strategy="keep_all")
        self._frontiers: dict[tuple[str, tuple[tuple[str, Any], ...]], Frontier] = {}

    def planned(self, case: Case) -> Plan:
        options = dict(case.options)
        if case.target_ratio is not None:
            assert not callable(case.strategy)  # It has no front of plans to choose from.
            optimal = planner.choose(self._graph, "optimal", None, {})
            frontier = self._frontier(case.strategy or "budget", options)
            return self.with_figures(frontier.at_ratio(case.target_ratio, optimal))
        assert case.strategy is not None
        asked = options.pop("budget", None)
        total = None if asked is None else budgets.budget_bytes(asked, lambda: self.plain.needed_bytes)
        budget = None if total is None else budgets.StepBudget(total, self.fixed)
        return self.with_figures(planner.choose(self._graph, case.strategy, budget, options))

    def with_figures(self, plan: Plan) -> Plan:
        return outlooks.with_outlook(self._graph, plan)

    def estimate(self, plan: Plan | None, mode: str) -> Prediction:
        return simulator.estimate(self._graph, self._keep_all if plan is None else plan, self.fixed, mode)

    def _frontier(self, strategy: str = "budget", options: Mapping[str, Any] = MappingProxyType({})) -> Frontier:
        """The plans from the least peak to the plain step."""
        asked = strategy, tuple(sorted(options.items()))
        if asked not in self._frontiers:
            self._frontiers[asked] = strategies.frontier(self._graph, strategy, **links.measured(options))
        return self._frontiers[asked]

    def front(self, job: PredictionJob) -> FrontRecord:
        others = [(name, plan) for name, plan in self.made() if name != "optimal"]
        shown = sweep.Shown(job.network, budgets=job.marks, plans=others)
        return sweep.front_of(self._graph, self.fixed, shown, self._frontier())


class ByCalls(Reading):
    """Plans by calls; raises `PlanMismatchError` if a given one is for another model."""

    def __init__(self, call_plans: CallPlans, fixed: int, given: Mapping[str, Plan]) -> None:
        super().__init__(fixed, given, call_plans.floor, by_calls.MODES)
        sweep.check(given.items(), call_plans.with_figures)
        self._call_plans = call_plans

    def planned(self, case: Case) -> Plan:
        budget = case.options.get("budget")
        if budget is None:
            return self._call_plans.least()
        return by_calls.fitting(self._call_plans, self._call_plans.model, budget, self.fixed)

    def with_figures(self, plan: Plan) -> Plan:
        return self._call_plans.with_figures(plan)

    def estimate(self, plan: Plan | None, mode: str) -> Prediction:
        return self._call_plans.estimate(plan, self.fixed)

    def front(self, job: PredictionJob) -> FrontRecord:
        shown = sweep.Shown(job.network, budgets=job.marks, plans=self.made())
        return sweep.front_by_calls(self._call_plans, self.fixed, shown)


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
