"""Predict the largest batch whose step fits in a budget: a search over annotated graphs of one model.

What a step needs is nearly linear in its batch, not quite: the allocator's chunks make it jump, by up to a
few per cent down as well as up. So a straight line through two batches says where to look, and what is found
is the batch that fits with `_ABOVE` after it that do not, or all that could.

The plan of least peak hardly depends on the batch, and finding it costs most. So a front of plans is made
at one batch, and again at the first batch that fits none of its plans; else these are estimated anew for each batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras

from tfgc import strategies
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._planning import annotated, budgets, planner
from tfgc._records.batch_limit import MOST
from tfgc._records.job import LargestBatch, MaxBatchJob, MaxBatchPrediction
from tfgc._simulate import outlooks, simulator
from tfgc._tracing import keras_graph

_FIRST = 16
_ABOVE = 16
# Plans of each front that are estimated: the allocator may serve the second least with less.
_NEAR_LEAST = 8


def predict_max_batch(model: keras.Model, job: MaxBatchJob, loss: str = "mse") -> MaxBatchPrediction:
    """Return what a `MaxBatchJob` for this model finds: its `MaxBatchPrediction`.

    Raises:
        OptionError: If the model has one batch size only, or a size is open.
    """
    for tensor in keras_graph.functional_of(model).inputs:
        if tensor.shape[0] is not None:
            raise OptionError(
                f"input {tensor.name!r} is declared for batches of {tensor.shape[0]}, so no larger one can "
                "be searched: declare it without a batch, as keras.Input(shape) does"
            )
    optimizer = job.optimizer or getattr(model, "optimizer", None) or "adam"
    fixed = budgets.fixed_bytes(model, optimizer)
    budget = budgets.budget_bytes(job.budget, None, fixed)
    graphs = _Graphs(lambda batch: _graph(model, batch, job.input_shapes, loss))
    plain = _ByStrategy(graphs, fixed, budget, "keep_all", {})
    recomputed: _ByStrategy | _LeastMemory | None = None
    if job.strategy in (None, "budget"):
        recomputed = _LeastMemory(graphs, fixed, job.options)
    elif job.strategy != "keep_all":
        recomputed = _ByStrategy(graphs, fixed, budget, job.strategy, job.options)
    optimizer = keras.optimizers.get(optimizer)
    return MaxBatchPrediction(
        budget_bytes=budget,
        fixed_bytes=fixed,
        optimizer=keras.optimizers.serialize(optimizer),
        plain=dataclasses.replace(_largest(plain, budget), plan=None),
        recomputed=None if recomputed is None else _largest(recomputed, budget),
    )


def largest_fitting(need: Callable[[int], tuple[int, int]], budget: int, most: int = MOST, above: int = _ABOVE) -> int:
    """The largest batch that fits, 0 if a single sample does not.

    Args:
        need: Function from a batch to a pair: what it needs, and a bound of that from below which never falls.
        budget: What may be needed.
        most: The largest batch to look at.
        above: How many batches in a row must not fit above the one that is returned.
    """

    def fits(batch: int) -> bool:
        return need(batch)[0] <= budget

    if not fits(1):
        return 0
    low, high = _bracket(need, fits, budget, most)
    turn = 0
    while high - low > 1:
        turn += 1
        guess = (low + high) // 2 if turn % 3 == 0 else _on_line(need, low, high, budget)
        guess = min(max(guess, low + 1), high - 1)
        low, high = (guess, high) if fits(guess) else (low, guess)
    batch = low
    while batch < min(low + above, most):
        batch += 1
        needed, bound = need(batch)
        if bound > budget:
            break
        if needed <= budget:
            low = batch
    return low


def _bracket(
    need: Callable[[int], tuple[int, int]], fits: Callable[[int], bool], budget: int, most: int
) -> tuple[int, int]:
    """A batch that fits and a larger one that does not; the latter may be beyond `most`."""
    low, high = 1, min(_FIRST, most)
    before = low
    while fits(high):
        if high == most:
            return most, most + 1
        guess = _on_line(need, before, high, budget)
        before, low = low, high
        high = min(max(guess, low + 1 + low // 64), 64 * low, most)
    return low, high


def _on_line(need: Callable[[int], tuple[int, int]], first: int, second: int, budget: int) -> int:
    """The batch whose need meets the budget, on a line through two others."""
    (a, _), (b, _) = need(first), need(second)
    return MOST if b <= a else int(first + (budget - a) * (second - first) / (b - a))


def _graph(
    model: keras.Model, batch: int, input_shapes: Mapping[str, tuple[int | None, ...]] | None, loss: str
) -> Graph:
    return annotated.graph_of(model, batch, input_shapes, None, whole_step=True, loss=loss)


class _Step(NamedTuple):
    """What a step needs, what it asks for without the allocator's chunks, its plan, and the node at its peak."""

    needed_bytes: int
    asked_bytes: int
    plan: Plan | None
    node: str


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


def _largest(way: _ByStrategy | _LeastMemory, budget: int) -> LargestBatch:
    """The `LargestBatch` of a way: a `_ByStrategy` or a `_LeastMemory`."""
    batch = largest_fitting(way.need, budget)
    while batch < MOST and way.add_plans_for(batch + 1) and way.need(batch + 1)[0] <= budget:
        batch = largest_fitting(way.need, budget)
    at = max(batch, 1)
    needed, plan, node = way.best(at)
    other = max(1, at // 2) if at > 1 else 2
    return LargestBatch(
        batch_size=batch,
        needed_bytes=needed,
        sample_bytes=(way.best(other)[0] - needed) / (other - at),
        node=node,
        plan=None
        if plan is None
        else outlooks.with_outlook(way.graphs[at], dataclasses.replace(plan, batch_size=at)).to_json(),
    )


class _ByStrategy:
    """Training by one strategy, which plans for each batch."""

    def __init__(
        self, graphs: _Graphs, fixed: int, budget: int, strategy: str | Callable[..., Plan], options: dict[str, Any]
    ) -> None:
        self.graphs, self._fixed, self._strategy, self._options = graphs, fixed, strategy, options
        self._limit = budget if strategies.honours_budget(strategy) else None
        self._steps: dict[int, _Step] = {}

    def need(self, batch: int) -> tuple[int, int]:
        """What a step of this batch needs, and what it asks for without the allocator's chunks."""
        step = self._step(batch)
        return step.needed_bytes, step.asked_bytes

    def best(self, batch: int) -> tuple[int, Plan | None, str]:
        """What a step of this batch needs, its plan, and the node at its peak."""
        step = self._step(batch)
        return step.needed_bytes, step.plan, step.node

    def add_plans_for(self, batch: int) -> bool:
        """Whether another look at this batch may find a better plan."""
        return False

    def _step(self, batch: int) -> _Step:
        if batch not in self._steps:
            self._steps[batch] = self._planned(batch)
        return self._steps[batch]

    def _planned(self, batch: int) -> _Step:
        graph = self.graphs[batch]
        held = self._fixed + self.graphs.data_bytes(batch)
        try:
            if self._limit is None:
                graph_of_plan = graph.counting(whole_step=False)
                plan = strategies.apply(self._strategy, graph_of_plan, **self._options)
            else:
                plan = planner.fitting(graph, self._strategy, budgets.StepBudget(self._limit, held), self._options)
        except InfeasibleBudgetError as error:
            return _Step(error.least, outlooks.floor(graph)[0] + held, None, error.node)
        step = simulator.estimate(graph, plan, held)
        return _Step(step.needed_bytes, step.peak_bytes, plan, step.node)


class _LeastMemory:
    """Training by whichever plan needs least, nested replays among them."""

    def __init__(self, graphs: _Graphs, fixed: int, options: dict[str, Any]) -> None:
        self.graphs, self._fixed, self._options = graphs, fixed, options
        self._plans: list[Plan] = []
        self._looked: set[int] = set()
        self._steps: dict[int, list[simulator.Prediction]] = {}

    def need(self, batch: int) -> tuple[int, int]:
        """What a step of this batch needs, and what it asks for without the allocator's chunks, each at least."""
        steps = self._all(batch)
        return min(step.needed_bytes for step in steps), min(step.peak_bytes for step in steps)

    def best(self, batch: int) -> tuple[int, Plan | None, str]:
        """What a step of this batch needs at least, the plan of that, and the node at its peak."""
        steps = self._all(batch)
        i = min(range(len(steps)), key=lambda i: steps[i].needed_bytes)
        return steps[i].needed_bytes, self._plans[i], steps[i].node

    def add_plans_for(self, batch: int) -> bool:
        """Look for plans at this batch, too; False if that was done before."""
        if batch in self._looked:
            return False
        self._looked.add(batch)
        for plan in strategies.frontier(self.graphs[batch], **self._options).plans[:_NEAR_LEAST]:
            if not any(plan.segments == known.segments for known in self._plans):
                self._plans.append(plan)
        return True

    def _all(self, batch: int) -> list[simulator.Prediction]:
        if not self._plans:
            self.add_plans_for(_FIRST)
        steps = self._steps.setdefault(batch, [])
        held = self._fixed + self.graphs.data_bytes(batch)
        for plan in self._plans[len(steps) :]:
            steps.append(simulator.estimate(self.graphs[batch], plan, held))
        return steps
