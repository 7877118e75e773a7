"""Predict the largest batch whose step fits in a budget: a search over traces of one model's step at many batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import keras

from tfgc import strategies
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._framework import keras_names
from tfgc._measure import any_model, batch_search, examples
from tfgc._planning import ahead, budgets
from tfgc._planning.request import Request
from tfgc._planning.step_ahead import StepAhead
from tfgc._records.job import LargestBatch, MaxBatchJob, MaxBatchPrediction
from tfgc._tracing import functional_graphs

_FIRST = 16


def predict_max_batch(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    """What a `MaxBatchJob` for this model finds."""
    takes_example = any_model.takes_example(model, job.example)
    for tensor in () if takes_example else functional_graphs.functional_of(model).inputs:
        if tensor.shape[0] is not None:
            raise OptionError(
                f"input {tensor.name!r} is declared for batches of {tensor.shape[0]}, so tfgc cannot search for a "
                "larger one: declare it without a batch, as keras.Input(shape) does"
            )
    optimizer, example = job.optimizer or getattr(model, "optimizer", None) or "adam", None
    if takes_example:
        given = job.optimizer if model.compiled else keras_names.optimizer(optimizer)
        example = any_model.completed(model, job.example, _FIRST, given)
        optimizer = None if model.compiled and given is None else given
    chosen = None if optimizer is None else keras_names.optimizer(optimizer)
    fixed = budgets.fixed_bytes(model, chosen)
    budget = budgets.budget_bytes(job.budget, None, budgets.resident_bytes(model))

    @functools.cache
    def plans(batch: int) -> StepAhead:
        if example is not None:
            return ahead.plans_for(model, None, examples.batch(example, batch), job.mode)
        return ahead.plans_for(model, batch, None, job.mode, job.input_shapes, "mse", chosen)

    def step(batch: int, plan: Plan | None) -> LargestBatch:
        found = plans(batch).estimate(plan)
        return LargestBatch(batch, found.needed_bytes, found.node, None if plan is None else plan.to_json())

    def least(batch: int) -> LargestBatch:
        made = step(batch, plans(batch).least()), step(batch, None)
        return min(made, key=lambda way: way.needed_bytes)

    honours = job.strategy is not None and strategies.honours_budget(job.strategy)
    request = Request(job.strategy, budget if honours else None, dict(job.options))

    def by_strategy(batch: int) -> LargestBatch:
        try:
            return step(batch, ahead.chosen(plans(batch), request))
        except InfeasibleBudgetError as error:
            return LargestBatch(batch, error.least, error.node)

    def largest(way: Callable[[int], LargestBatch]) -> LargestBatch:
        way = functools.cache(way)
        batch = batch_search.largest_fitting(lambda batch: way(batch).needed_bytes, budget, _FIRST, fixed)[0]
        return way(batch) if batch else dataclasses.replace(way(1), batch_size=0)

    recomputed = least if job.strategy in (None, "budget") and not job.options else by_strategy
    return MaxBatchPrediction(
        budget_bytes=budget,
        fixed_bytes=fixed,
        optimizer=None if chosen is None else keras.optimizers.serialize(chosen),
        plain=largest(lambda batch: step(batch, None)),
        recomputed=None if job.strategy == "keep_all" else largest(recomputed),
    )
