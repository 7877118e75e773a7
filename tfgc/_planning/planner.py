"""From a model to plans for it."""

import dataclasses
from typing import Any

import keras

from tfgc._core.plan import Plan
from tfgc._framework.model_checks import check_model
from tfgc._planning import ahead
from tfgc._planning.budgets import Budget
from tfgc._planning.request import Request
from tfgc._tracing import example_sizes
from tfgc._tracing.synthetic import Shapes
from tfgc.strategies import Strategy


def plan(
    model: keras.Model,
    batch_size: int | None = None,
    *,
    strategy: Strategy | None = None,
    budget: Budget | None = None,
    mode: str = "graph",
    input_shapes: Shapes | None = None,
    example: Any = None,
    optimizer: keras.Optimizer | str | None = None,
    loss: Any = None,
    ratio: float | None = None,
    **options: Any,
) -> Plan:
    """Choose what to keep and what to recompute when `model` trains: `tfgc.plan` without `confirm`."""
    if budget is not None:
        ahead.check_batch(model, batch_size, example)
    plans = ahead.plans_for(model, batch_size, example, mode, input_shapes, loss, optimizer)
    made = ahead.chosen(plans, Request(strategy, budget, options, ratio=ratio))
    is_known = batch_size is not None or example is not None or example_sizes.declared_batch(model) is not None
    return made if is_known else of_one_sample(made)


def of_one_sample(plan: Plan) -> Plan:
    """The plan with bytes and work of one sample in place of those of its batch."""
    return dataclasses.replace(_divided(plan, plan.batch_size or 1), batch_size=None)


def _divided(record: Any, batch: int) -> Any:
    """A plan, segment or outlook, and what is in it, with so many times less bytes and work."""
    found: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(record)):
        value = getattr(record, name)
        if name == "segments":
            found[name] = tuple(_divided(segment, batch) for segment in value)
        elif name in ("inner", "outlook"):
            found[name] = value and _divided(value, batch)
        elif name.endswith(("_bytes", "work")) and value is not None:
            found[name] = value // batch if name.endswith("_bytes") else value / batch
    return dataclasses.replace(record, **found)


def pareto(
    model: keras.Model,
    batch_size: int | None = None,
    *,
    input_shapes: Shapes | None = None,
    example: Any = None,
    loss: Any = None,
    mode: str = "graph",
) -> list[Plan]:
    """Return the Pareto front of plans, from the least peak to the plain step, each with less work than the one before.

    Args:
        model, batch_size, input_shapes, example, loss: As for `tfgc.plan`.
        mode: As for `tfgc.plan`.

    Returns:
        A list of `Plan` whose `outlook` holds peak and overhead.

    Raises:
        OptionError: If the batch size or another size is not known.
        UnsupportedModelError: If the model has no graph and there is no example, or if it cannot be traced.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(8)])
        >>> front = tfgc.pareto(model, batch_size=32)
        >>> front[0].outlook.peak_bytes < front[-1].outlook.peak_bytes, front[-1].outlook.overhead
        (True, 0.0)
    """
    check_model(model)
    ahead.check_batch(model, batch_size, example)
    return ahead.plans_for(model, batch_size, example, mode, input_shapes, loss).front()
