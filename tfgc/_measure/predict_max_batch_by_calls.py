"""Predict the largest batch of a model that is planned by the calls of its layers: its step is traced for each batch.

Plans are made as for functional models: at one batch, and again at the first batch that fits none of them.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._calls.call_plans import CallPlans
from tfgc._core.plan import Plan
from tfgc._framework import keras_names
from tfgc._measure import any_model, batch_search, examples
from tfgc._measure.batch_ways import Step, Way
from tfgc._planning import budgets, by_calls
from tfgc._records.job import MaxBatchJob
from tfgc._records.reply import MaxBatchPrediction


def predict_max_batch_by_calls(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    """Return what a `MaxBatchJob` for this model finds: its `MaxBatchPrediction`."""
    any_model.check(model)
    by_calls.refuse(None, None, False, None, {})
    optimizer = None if model.compiled else keras_names.optimizer(job.optimizer or "adam")
    given = job.optimizer if model.compiled else optimizer
    example = any_model.completed(model, job.example, batch_search.FIRST, given)
    fixed, budget = budgets.fixed_bytes(model), budgets.budget_bytes(job.budget, None)
    steps = _Steps(model, example, fixed, job.mode == "xla")
    return MaxBatchPrediction(
        budget_bytes=budget,
        fixed_bytes=fixed,
        optimizer=None if optimizer is None else keras.optimizers.serialize(optimizer),
        plain=_Plain(steps).largest(budget),
        recomputed=_LeastMemory(steps).largest(budget),
    )


class _Steps(dict[int, CallPlans]):
    """Plans by their batch, whose step is traced once.

    Args:
        model: The model.
        example: A batch, as `examples.batch` takes it.
        fixed: Bytes of weights and optimizer slots.
        xla: Whether XLA compiles the step.
    """

    def __init__(self, model: keras.Model, example: Any, fixed: int, xla: bool) -> None:
        super().__init__()
        self._model, self._example, self._fixed, self._xla = model, example, fixed, xla
        self._held: dict[int, int] = {}

    def __missing__(self, batch: int) -> CallPlans:
        data = examples.batch(self._example, batch)
        tensors = [tensor for tensor in tf.nest.flatten(data) if tensor is not None]
        self._held[batch] = self._fixed + sum(tensor.dtype.size * tensor.shape.num_elements() for tensor in tensors)
        self[batch] = CallPlans(self._model, data, xla=self._xla)
        return self[batch]

    def estimated(self, batch: int, plan: Plan | None) -> Step:
        """The step of a batch by a plan, or the plain one; the batch counts as well."""
        step = self[batch].estimate(plan, self._held[batch])
        return Step(step.needed_bytes, step.peak_bytes, plan, step.node)


class _ByCalls(Way):
    """Training by any of some plans."""

    above = 4  # each takes a trace

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self._plans: list[Plan | None] = []
        self._known: dict[int, list[Step]] = {}

    def steps(self, batch: int) -> Sequence[Step]:
        """The steps by all plans that are known by now."""
        if not self._plans:
            self.add_plans_for(batch_search.FIRST)
        known = self._known.setdefault(batch, [])
        known += [self._steps.estimated(batch, plan) for plan in self._plans[len(known) :]]
        return known

    def finished(self, plan: Plan, batch: int) -> Plan:
        """The plan with its figures for this batch."""
        return self._steps[batch].with_figures(plan)


class _Plain(_ByCalls):
    """Training without recomputation."""

    def add_plans_for(self, batch: int) -> bool:
        """Add plain training; False if that was done before."""
        new = not self._plans
        self._plans = [None]
        return new


class _LeastMemory(_ByCalls):
    """Training by whichever plan needs least."""

    def add_plans_for(self, batch: int) -> bool:
        """Also plan for this batch; False if that finds nothing new."""
        plan = self._steps[batch].least()
        new = not any(_same(plan, known) for known in self._plans)
        self._plans += [plan] * new
        return new


def _same(plan: Plan, other: Plan | None) -> bool:
    return other is not None and _choice(plan) == _choice(other)


def _choice(plan: Plan) -> tuple[object, ...]:
    return plan.recomputed_layers, plan.selective_layers, plan.parts
