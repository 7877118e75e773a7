"""Plans for models without a graph of nodes: by the calls of their layers."""

from collections.abc import Mapping
from typing import Any

import keras

from tfgc._calls import tracing
from tfgc._calls.call_plans import CallPlans
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, UnsupportedModelError
from tfgc._framework import keras_models
from tfgc._planning import budgets
from tfgc._planning.budgets import Budget
from tfgc._simulate.simulator import Prediction
from tfgc._tracing import keras_graph


def applies_to(model: Any) -> bool:
    """Whether a model is one of Keras's that has no graph of nodes."""
    return isinstance(model, keras.Model) and not keras_models.runs_graph(model)


def refuse(strategy: Any, input_shapes: Any, measure: bool, loss: Any, options: Mapping[str, Any]) -> None:
    """Raise `OptionError` for what applies to graphs of nodes alone."""
    given = {"strategy": strategy, "input_shapes": input_shapes, "measure": measure or None, "loss": loss, **options}
    name = next((name for name, value in given.items() if value is not None), None)
    if name is not None:
        raise OptionError(
            f"{name}={given[name]!r} is for functional models: one that is planned by the calls of its layers takes "
            "example= and budget=, and its compiled loss"
        )


def plan(model: keras.Model, batch_size: int | None, example: Any, budget: Budget | None, optimizer: Any) -> Plan:
    """The plan of least peak, or the one that a budget buys."""
    plans = _plans(model, batch_size, example)
    if budget is None:
        return plans.least()
    fixed = budgets.fixed_bytes(model, optimizer)
    total = budgets.budget_bytes(budget, lambda: plans.plain_bytes(fixed), budgets.resident_bytes(model))
    return plans.fitting(total, fixed)


def pareto(model: keras.Model, batch_size: int | None, example: Any) -> list[Plan]:
    """The Pareto front."""
    return _plans(model, batch_size, example).front()


def estimate(
    model: keras.Model, batch_size: int | None, example: Any, plan: Plan | None, mode: str, optimizer: Any
) -> Prediction:
    """What a step needs."""
    if mode != "graph":
        raise OptionError(f"mode={mode!r}: a model that is planned by the calls of its layers is predicted in 'graph'")
    if plan is not None and not plan.calls:
        plan.check_model(())
    return _plans(model, batch_size, example).estimate(plan, budgets.fixed_bytes(model, optimizer))


def _plans(model: keras.Model, batch_size: int | None, example: Any) -> CallPlans:
    if example is None:
        try:
            keras_graph.functional_of(model)
        except UnsupportedModelError as error:
            advice = "Or plan it by the calls of its layers: give a batch, or its specs, as example=(x, y)"
            raise UnsupportedModelError(f"{error}. {advice}") from None
    given = tracing.batch_size(example)
    if batch_size not in (None, given):
        raise OptionError(f"batch_size={batch_size}, but the example is a batch of {given}")
    return CallPlans(model, example)
