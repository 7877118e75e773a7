"""Predict the largest batch whose step fits in a budget: a search over readings of one model at many batches.

The plan of least peak hardly depends on the batch, and finding it costs most. So plans are made at one batch, and again
at the first batch that fits none of them; else these are estimated anew for each batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfgc import strategies
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._framework import keras_names
from tfgc._measure import any_model, batch_search, examples
from tfgc._measure.batch_ways import Step, Way
from tfgc._planning import ahead, annotated, budgets, planner
from tfgc._planning.node_plans import NodePlans
from tfgc._planning.step_ahead import StepAhead
from tfgc._records.job import MaxBatchJob, MaxBatchPrediction
from tfgc._tracing import functional_graphs

# Plans of each front that are estimated: the allocator may serve the second least with less.
_NEAR_LEAST = 8


def predict_max_batch(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    """What a `MaxBatchJob` for this model finds."""
    return (_by_steps if any_model.takes_example(model, job.example) else _by_nodes)(model, job)


def _by_nodes(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    for tensor in functional_graphs.functional_of(model).inputs:
        if tensor.shape[0] is not None:
            raise OptionError(
                f"input {tensor.name!r} is declared for batches of {tensor.shape[0]}, so tfgc cannot search for a "
                "larger one: declare it without a batch, as keras.Input(shape) does"
            )
    optimizer = job.optimizer or getattr(model, "optimizer", None) or "adam"
    fixed, xla = budgets.fixed_bytes(model, optimizer), job.mode == "xla"

    @functools.cache
    def plans(batch: int) -> tuple[NodePlans, int]:
        graph = annotated.graph_of(
            model, batch, job.input_shapes, None, whole_step=True, loss="mse", optimizer=optimizer, xla=xla
        )
        data = sum(spec.bytes(batch) for spec in graph.inputs.values()) + sum(map(graph.bytes, graph.outputs))
        return NodePlans(graph), fixed + data

    budget, options = _budget(model, job), planner.with_measured_link(job.options)
    recomputed: Way | None = None
    if job.strategy in (None, "budget"):
        recomputed = Way(plans, lambda batch: _candidates(plans(batch)[0].frontier(**options).plans))
    elif job.strategy != "keep_all":
        recomputed = _ByStrategy(plans, budget, job.strategy, options)
    return _found(budget, fixed, keras_names.optimizer(optimizer), Way(plans, lambda batch: [None]), recomputed)


def _by_steps(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    optimizer = None if model.compiled else keras_names.optimizer(job.optimizer or "adam")
    given = job.optimizer if model.compiled else optimizer
    example = any_model.completed(model, job.example, batch_search.FIRST, given)
    fixed = budgets.fixed_bytes(model)

    @functools.cache
    def plans(batch: int) -> tuple[StepAhead, int]:
        data = examples.batch(example, batch)
        return ahead.plans_for(model, None, data, job.mode), fixed

    above = 4  # each takes a trace
    plain = Way(plans, lambda batch: [None], above)
    recomputed = Way(plans, lambda batch: [plans(batch)[0].least(), None], above)
    return _found(_budget(model, job), fixed, optimizer, plain, recomputed)


def _candidates(front: Sequence[Plan]) -> Sequence[Plan]:
    """The plans of a front that may need least: those of low peaks, and the plain step, which needs no reserve."""
    return [*front[:_NEAR_LEAST], front[-1]]


def _budget(model: keras.Model, job: MaxBatchJob) -> int:
    return budgets.budget_bytes(job.budget, None, budgets.resident_bytes(model))


def _found(
    budget: int, fixed: int, optimizer: keras.Optimizer | None, plain: Way, recomputed: Way | None
) -> MaxBatchPrediction:
    return MaxBatchPrediction(
        budget_bytes=budget,
        fixed_bytes=fixed,
        optimizer=None if optimizer is None else keras.optimizers.serialize(optimizer),
        plain=plain.largest(budget),
        recomputed=None if recomputed is None else recomputed.largest(budget),
    )


class _ByStrategy(Way):
    """Training by one strategy, which plans for each batch."""

    def __init__(
        self,
        plans: Callable[[int], tuple[NodePlans, int]],
        budget: int,
        strategy: str | Callable[..., Plan],
        options: dict[str, Any],
    ) -> None:
        super().__init__(plans, lambda batch: ())
        self._node_plans, self._strategy, self._options = plans, strategy, options
        self._limit = budget if strategies.honours_budget(strategy) else None
        self._made: dict[int, Step] = {}

    def steps(self, batch: int) -> Sequence[Step]:
        """The step by the plan that the strategy makes for this batch."""
        if batch not in self._made:
            self._made[batch] = self._planned(batch)
        return [self._made[batch]]

    def _planned(self, batch: int) -> Step:
        plans, held = self._node_plans(batch)
        budget = None if self._limit is None else budgets.StepBudget(self._limit, held)
        try:
            plan = planner.choose(plans, self._strategy, budget, self._options)
        except InfeasibleBudgetError as error:
            return Step(error.least, plans.floor[0] + held, None, error.node)
        return self.estimated(batch, plan)
