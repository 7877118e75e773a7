"""Predict the largest batch whose step fits in a budget: a search over readings of one model at many batches.

The plan of least peak hardly depends on the batch, and finding it costs most. So plans are made at one batch, and again
at the first batch that fits none of them; else these are estimated anew for each batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import keras

from tfgc import strategies
from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._framework import keras_names
from tfgc._measure import any_model, batch_search, examples
from tfgc._measure.batch_ways import Step, Way
from tfgc._planning import ahead, budgets
from tfgc._planning.request import Request
from tfgc._planning.step_ahead import StepAhead
from tfgc._records.job import MaxBatchJob, MaxBatchPrediction
from tfgc._tracing import functional_graphs


def predict_max_batch(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    """What a `MaxBatchJob` for this model finds."""
    takes_example = any_model.takes_example(model, job.example)
    if not takes_example:
        check_open(model)
    optimizer, example = job.optimizer or getattr(model, "optimizer", None) or "adam", None
    if takes_example:
        given = job.optimizer if model.compiled else keras_names.optimizer(optimizer)
        example = any_model.completed(model, job.example, batch_search.FIRST, given)
        optimizer = None if model.compiled and given is None else given
    chosen = None if optimizer is None else keras_names.optimizer(optimizer)
    fixed = budgets.fixed_bytes(model, chosen)

    @functools.cache
    def plans(batch: int) -> StepAhead:
        if example is not None:
            return ahead.plans_for(model, None, examples.batch(example, batch), job.mode)
        return ahead.plans_for(model, batch, None, job.mode, job.input_shapes, "mse", chosen)

    budget, options = _budget(model, job), dict(job.options)
    plain = Way(plans, lambda batch: [None])
    recomputed: Way | None = None
    if job.strategy in (None, "budget") and not options:
        recomputed = Way(plans, lambda batch: [plans(batch).least(), None])
    elif job.strategy != "keep_all":
        asked = budget if job.strategy is not None and strategies.honours_budget(job.strategy) else None
        recomputed = _ByStrategy(plans, Request(job.strategy, asked, options))
    return MaxBatchPrediction(
        budget_bytes=budget,
        fixed_bytes=fixed,
        optimizer=None if chosen is None else keras.optimizers.serialize(chosen),
        plain=plain.largest(budget),
        recomputed=None if recomputed is None else recomputed.largest(budget),
    )


def check_open(model: keras.Model) -> None:
    """Raise `OptionError` for a model that is declared for one batch."""
    for tensor in functional_graphs.functional_of(model).inputs:
        if tensor.shape[0] is not None:
            raise OptionError(
                f"input {tensor.name!r} is declared for batches of {tensor.shape[0]}, so tfgc cannot search for a "
                "larger one: declare it without a batch, as keras.Input(shape) does"
            )


def _budget(model: keras.Model, job: MaxBatchJob) -> int:
    return budgets.budget_bytes(job.budget, None, budgets.resident_bytes(model))


class _ByStrategy(Way):
    """Training by one strategy, which plans for each batch."""

    def __init__(self, plans: Callable[[int], StepAhead], request: Request) -> None:
        super().__init__(plans, lambda batch: ())
        self._step_plans, self._request = plans, request
        self._made: dict[int, Step] = {}

    def steps(self, batch: int) -> Sequence[Step]:
        """The step by the plan that the strategy makes for this batch."""
        if batch not in self._made:
            self._made[batch] = self._planned(batch)
        return [self._made[batch]]

    def _planned(self, batch: int) -> Step:
        plans = self._step_plans(batch)
        try:
            plan = ahead.chosen(plans, self._request)
        except InfeasibleBudgetError as error:
            return Step(error.least, plans.floor[0] + plans.held_bytes, None, error.node)
        return self.estimated(batch, plan)
