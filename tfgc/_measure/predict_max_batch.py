"""Predict the largest batch whose step fits in a budget: a search over readings of one model at many batches.

The plan of least peak hardly depends on the batch, and finding it costs most. So plans are made at one batch, and again
at the first batch that fits none of them; else these are estimated anew for each batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc import strategies
from tfgc._calls.call_plans import CallPlans
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._framework import keras_names
from tfgc._measure import any_model, batch_search, examples
from tfgc._measure.batch_ways import Step, Way
from tfgc._planning import annotated, budgets, links, planner
from tfgc._records.job import MaxBatchJob
from tfgc._records.reply import MaxBatchPrediction
from tfgc._simulate import outlooks, simulator
from tfgc._tracing import functional_graphs

# Plans of each front that are estimated: the allocator may serve the second least with less.
_NEAR_LEAST = 8


def predict_max_batch(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    """What a `MaxBatchJob` for this model finds."""
    return (_by_calls if any_model.takes_example(model, job.example) else _by_nodes)(model, job)


def _by_nodes(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    for tensor in functional_graphs.functional_of(model).inputs:
        if tensor.shape[0] is not None:
            raise OptionError(
                f"input {tensor.name!r} is declared for batches of {tensor.shape[0]}, so tfgc cannot search for a "
                "larger one: declare it without a batch, as keras.Input(shape) does"
            )
    optimizer = job.optimizer or getattr(model, "optimizer", None) or "adam"
    steps = _NodeSteps(model, job, budgets.fixed_bytes(model, optimizer))
    budget, options = budgets.budget_bytes(job.budget, None), links.measured(job.options)
    recomputed: Way | None = None
    if job.strategy in (None, "budget"):
        recomputed = Way(steps, lambda batch: strategies.frontier(steps.graph(batch), **options).plans[:_NEAR_LEAST])
    elif job.strategy != "keep_all":
        recomputed = _ByStrategy(steps, budget, job.strategy, options)
    return MaxBatchPrediction(
        budget_bytes=budget,
        fixed_bytes=steps.fixed,
        optimizer=keras.optimizers.serialize(keras_names.optimizer(optimizer)),
        plain=Way(steps, lambda batch: [None]).largest(budget),
        recomputed=None if recomputed is None else recomputed.largest(budget),
    )


def _by_calls(model: keras.Model, job: MaxBatchJob) -> MaxBatchPrediction:
    optimizer = None if model.compiled else keras_names.optimizer(job.optimizer or "adam")
    given = job.optimizer if model.compiled else optimizer
    example = any_model.completed(model, job.example, batch_search.FIRST, given)
    steps = _CallSteps(model, example, budgets.fixed_bytes(model), job.mode == "xla")
    budget = budgets.budget_bytes(job.budget, None)
    return MaxBatchPrediction(
        budget_bytes=budget,
        fixed_bytes=steps.fixed,
        optimizer=None if optimizer is None else keras.optimizers.serialize(optimizer),
        plain=Way(steps, lambda batch: [None]).largest(budget),
        recomputed=Way(steps, lambda batch: [steps.plans(batch)[0].least()]).largest(budget),
    )


class _NodeSteps:
    """The steps of a functional model, of which `fixed` bytes are weights and slots."""

    above = batch_search.ABOVE

    def __init__(self, model: keras.Model, job: MaxBatchJob, fixed: int) -> None:
        self._model, self._job, self.fixed = model, job, fixed
        self.graph = functools.cache(self._graph)

    def _graph(self, batch: int) -> Graph:
        return annotated.graph_of(
            self._model, batch, self._job.input_shapes, None, whole_step=True, loss="mse", xla=self._job.mode == "xla"
        )

    def held(self, batch: int) -> int:
        """Bytes that are there all the time: inputs and targets lie on the device as long as the step runs."""
        graph = self.graph(batch)
        data = sum(spec.bytes(batch) for spec in graph.inputs.values()) + sum(map(graph.bytes, graph.outputs))
        return self.fixed + data

    def estimated(self, batch: int, plan: Plan | None) -> Step:
        graph = self.graph(batch)
        chosen = Plan.from_cuts(graph, [], strategy="keep_all") if plan is None else plan
        step = simulator.estimate(graph, chosen, self.held(batch))
        return Step(step.needed_bytes, step.peak_bytes, plan, step.node)

    def finished(self, plan: Plan, batch: int) -> Plan:
        return outlooks.with_outlook(self.graph(batch), dataclasses.replace(plan, batch_size=batch))


class _CallSteps:
    """The steps of a model that is planned by the calls of its layers, of which `fixed` bytes are weights and slots."""

    above = 4  # each takes a trace

    def __init__(self, model: keras.Model, example: Any, fixed: int, xla: bool) -> None:
        self._model, self._example, self.fixed, self._xla = model, example, fixed, xla
        self.plans = functools.cache(self._plans)

    def _plans(self, batch: int) -> tuple[CallPlans, int]:
        """The plans for a batch, and the bytes that are there all the time."""
        data = examples.batch(self._example, batch)
        tensors = [tensor for tensor in tf.nest.flatten(data) if tensor is not None]
        held = self.fixed + sum(tensor.dtype.size * tensor.shape.num_elements() for tensor in tensors)
        return CallPlans(self._model, data, xla=self._xla), held

    def estimated(self, batch: int, plan: Plan | None) -> Step:
        plans, held = self.plans(batch)
        step = plans.estimate(plan, held)
        return Step(step.needed_bytes, step.peak_bytes, plan, step.node)

    def finished(self, plan: Plan, batch: int) -> Plan:
        return self.plans(batch)[0].with_figures(plan)


class _ByStrategy(Way):
    """Training by one strategy, which plans for each batch."""

    def __init__(
        self, model: _NodeSteps, budget: int, strategy: str | Callable[..., Plan], options: dict[str, Any]
    ) -> None:
        super().__init__(model, lambda batch: ())
        self._nodes, self._strategy, self._options = model, strategy, options
        self._limit = budget if strategies.honours_budget(strategy) else None
        self._made: dict[int, Step] = {}

    def steps(self, batch: int) -> Sequence[Step]:
        """The step by the plan that the strategy makes for this batch."""
        if batch not in self._made:
            self._made[batch] = self._planned(batch)
        return [self._made[batch]]

    def _planned(self, batch: int) -> Step:
        graph, held = self._nodes.graph(batch), self._nodes.held(batch)
        try:
            if self._limit is None:
                plan = strategies.apply(self._strategy, graph.counting(whole_step=False), **self._options)
            else:
                plan = planner.fitting(graph, self._strategy, budgets.StepBudget(self._limit, held), self._options)
        except InfeasibleBudgetError as error:
            return Step(error.least, outlooks.floor(graph)[0] + held, None, error.node)
        return self._nodes.estimated(batch, plan)
