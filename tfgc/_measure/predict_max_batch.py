"""Predict the largest batch whose step fits in a budget: a search over annotated graphs of one model.

The plan of least peak hardly depends on the batch, and finding it costs most. So a front of plans is made
at one batch, and again at the first batch that fits none of its plans; else these are estimated anew for each batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._framework import keras_names
from tfgc._measure import batch_search
from tfgc._measure.batch_ways import Step, Way
from tfgc._planning import annotated, budgets, links, planner
from tfgc._records.job import MaxBatchJob
from tfgc._records.reply import MaxBatchPrediction
from tfgc._simulate import outlooks, simulator
from tfgc._tracing import functional_graphs

# Plans of each front that are estimated: the allocator may serve the second least with less.
_NEAR_LEAST = 8


def predict_max_batch(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    """Return what a `MaxBatchJob` for this model finds: its `MaxBatchPrediction`.

    Raises:
        OptionError: If the model has one batch size only, or a size is open.
    """
    for tensor in functional_graphs.functional_of(model).inputs:
        if tensor.shape[0] is not None:
            raise OptionError(
                f"input {tensor.name!r} is declared for batches of {tensor.shape[0]}, so tfgc cannot search for a "
                "larger one: declare it without a batch, as keras.Input(shape) does"
            )
    optimizer = job.optimizer or getattr(model, "optimizer", None) or "adam"
    fixed = budgets.fixed_bytes(model, optimizer)
    budget = budgets.budget_bytes(job.budget, None)

    def graph(batch: int) -> Graph:
        xla = job.mode == "xla"
        return annotated.graph_of(model, batch, job.input_shapes, None, whole_step=True, loss="mse", xla=xla)

    graphs, options = _Graphs(graph), links.measured(job.options)
    plain = _ByStrategy(graphs, fixed, budget, "keep_all", {})
    recomputed: Way | None = None
    if job.strategy in (None, "budget"):
        recomputed = _LeastMemory(graphs, fixed, options)
    elif job.strategy != "keep_all":
        recomputed = _ByStrategy(graphs, fixed, budget, job.strategy, options)
    optimizer = keras_names.optimizer(optimizer)
    return MaxBatchPrediction(
        budget_bytes=budget,
        fixed_bytes=fixed,
        optimizer=keras.optimizers.serialize(optimizer),
        plain=dataclasses.replace(plain.largest(budget), plan=None),
        recomputed=None if recomputed is None else recomputed.largest(budget),
    )


class _Graphs(dict[int, Graph]):
    """Annotated graphs by their batch, each made once."""

    def __init__(self, make: Callable[[int], Graph]) -> None:
        self._make = make

    def __missing__(self, batch: int) -> Graph:
        self[batch] = self._make(batch)
        return self[batch]

    def data_bytes(self, batch: int) -> int:
        """Bytes of a batch of inputs and targets, which are on the device as long as the step runs."""
        graph = self[batch]
        return sum(spec.bytes(batch) for spec in graph.inputs.values()) + sum(map(graph.bytes, graph.outputs))


class _GraphWay(Way):
    """A way of training a functional model.

    Args:
        graphs: The annotated graphs of the model.
        fixed: Bytes of weights and optimizer slots.
    """

    def __init__(self, graphs: _Graphs, fixed: int) -> None:
        self._graphs, self._fixed = graphs, fixed

    def finished(self, plan: Plan, batch: int) -> Plan:
        """The plan with its figures for this batch."""
        return outlooks.with_outlook(self._graphs[batch], dataclasses.replace(plan, batch_size=batch))

    def _held(self, batch: int) -> int:
        """Bytes that are there all the time."""
        return self._fixed + self._graphs.data_bytes(batch)

    def _estimated(self, batch: int, plan: Plan) -> Step:
        step = simulator.estimate(self._graphs[batch], plan, self._held(batch))
        return Step(step.needed_bytes, step.peak_bytes, plan, step.node)


class _ByStrategy(_GraphWay):
    """Training by one strategy, which plans for each batch."""

    def __init__(
        self, graphs: _Graphs, fixed: int, budget: int, strategy: str | Callable[..., Plan], options: dict[str, Any]
    ) -> None:
        super().__init__(graphs, fixed)
        self._strategy, self._options = strategy, options
        self._limit = budget if strategies.honours_budget(strategy) else None
        self._steps: dict[int, Step] = {}

    def steps(self, batch: int) -> Sequence[Step]:
        """The step by the plan that the strategy makes for this batch."""
        if batch not in self._steps:
            self._steps[batch] = self._planned(batch)
        return [self._steps[batch]]

    def _planned(self, batch: int) -> Step:
        graph, held = self._graphs[batch], self._held(batch)
        try:
            if self._limit is None:
                plan = strategies.apply(self._strategy, graph.counting(whole_step=False), **self._options)
            else:
                plan = planner.fitting(graph, self._strategy, budgets.StepBudget(self._limit, held), self._options)
        except InfeasibleBudgetError as error:
            return Step(error.least, outlooks.floor(graph)[0] + held, None, error.node)
        return self._estimated(batch, plan)


class _LeastMemory(_GraphWay):
    """Training by whichever plan needs least, nested replays among them."""

    def __init__(self, graphs: _Graphs, fixed: int, options: dict[str, Any]) -> None:
        super().__init__(graphs, fixed)
        self._options = options
        self._plans: list[Plan] = []
        self._looked: set[int] = set()
        self._steps: dict[int, list[Step]] = {}

    def steps(self, batch: int) -> Sequence[Step]:
        """The steps by all plans that are known by now."""
        if not self._plans:
            self.add_plans_for(batch_search.FIRST)
        steps = self._steps.setdefault(batch, [])
        steps += [self._estimated(batch, plan) for plan in self._plans[len(steps) :]]
        return steps

    def add_plans_for(self, batch: int) -> bool:
        """Also look for plans at this batch; False if that was done before."""
        if batch in self._looked:
            return False
        self._looked.add(batch)
        for plan in strategies.frontier(self._graphs[batch], **self._options).plans[:_NEAR_LEAST]:
            if not any(plan.segments == known.segments for known in self._plans):
                self._plans.append(plan)
        return True
