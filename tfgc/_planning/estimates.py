"""From a model and a plan to what a step will need."""

from typing import Any

import keras

from tfgc import strategies
from tfgc._core.modes import check_predictable
from tfgc._core.plan import Plan
from tfgc._errors import OptionError
from tfgc._framework.model_checks import check_model
from tfgc._planning import annotated, budgets, by_calls
from tfgc._simulate import simulator
from tfgc._simulate.simulator import Prediction
from tfgc._tracing.keras_graph import Shapes


def estimate(
    model: keras.Model,
    batch_size: int | None = None,
    plan: Plan | None = None,
    *,
    mode: str = "graph",
    input_shapes: Shapes | None = None,
    example: Any = None,
    measure: bool = False,
    optimizer: keras.Optimizer | str | None = None,
    loss: Any = None,
) -> Prediction:
    """Predict memory and work of one training step; nothing is run.

    Args:
        model, batch_size, input_shapes, example, measure, optimizer, loss: As for `tfgc.plan`.
        plan: A `Plan` for the model. Default: nothing is recomputed. One of the operations of a step says itself what
            it needs, without a timeline.
        mode: `graph` for a step in `tf.function` (as in `fit`), `compiled` for a loop in Python that calls
            compiled segments, `xla` for a step that XLA compiles for a GPU, as `fit` does there: its buffers without
            inputs and targets. Op by op (`eager`) memory cannot be predicted.

    Returns:
        A `Prediction` of the whole step: `peak_bytes`, `activation_bytes`, `overhead`, `timeline`, and `needed_bytes`,
        which is what a budget is compared with. Work is counted in its `unit`.

    Raises:
        OptionError: For a mode that cannot be predicted, or if the batch size or another size is not known.
        PlanMismatchError: If the plan is for another model.
        UnsupportedModelError: If the model has no graph and there is no example, or if it cannot be traced.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
        >>> prediction = tfgc.estimate(model, 32, optimizer="sgd")
        >>> prediction.fixed_bytes
        1152
    """
    check_model(model)
    check_predictable(mode)
    strategies.check_plan(plan)
    if plan is not None and plan.operations:
        return _of_step(plan, batch_size, mode)
    calls_alone = by_calls.applies_to(model, example)
    if calls_alone:
        by_calls.refuse(None, input_shapes, measure, loss, {})
    if calls_alone or (plan is not None and plan.calls):
        plans = by_calls.plans_for(model, batch_size, example, mode, input_shapes, optimizer)
        return plans.estimate(plan, budgets.fixed_bytes(model, optimizer))
    graph = annotated.graph_of(
        model, batch_size, input_shapes, example, measure=measure, whole_step=True, loss=loss, optimizer=optimizer,
        xla=mode == "xla",
    )  # fmt: skip
    return simulator.estimate(graph, plan, budgets.fixed_bytes(model, optimizer), mode)


def _of_step(plan: Plan, batch_size: int | None, mode: str) -> Prediction:
    """What a plan of the operations of a step says of it."""
    if mode != "graph" or batch_size not in (None, plan.batch_size):
        raise OptionError(
            f"this plan (strategy {plan.strategy!r}) is of the operations of a step in mode 'graph' on a batch of "
            f"{plan.batch_size}: plan for mode={mode!r} and batch_size={batch_size} to estimate that"
        )
    outlook = plan.outlook
    assert outlook is not None, "a step that was traced has sizes"
    again = sum(segment.work or 0 for segment in plan.segments)
    plain = again / outlook.overhead if outlook.overhead else 0.0
    return Prediction(
        peak_bytes=outlook.needed_bytes or 0,
        activation_bytes=outlook.peak_bytes,
        node=outlook.node,
        phase=outlook.phase,
        work=plain + again,
        plain_work=plain,
        unit=outlook.unit,
        runs={name: 1 + (segment.mode == "recompute") for segment in plan.segments for name in segment.nodes},
        timeline=(),
        fixed_bytes=(outlook.needed_bytes or 0) - outlook.peak_bytes,
    )


def as_made(model: keras.Model, batch_size: int | None, plan: Plan, **common: Any) -> Prediction:
    """What `estimate` says of a plan, read as it was made: by nodes, or by calls."""
    example = common.get("example")
    if not plan.calls or by_calls.applies_to(model, example):
        return estimate(model, batch_size, plan, **common)
    shapes, mode = common.get("input_shapes"), common["mode"]
    optimizer = common.get("optimizer")
    plans = by_calls.plans_of_functional(model, plan.batch_size or 1, shapes, mode, example, optimizer)
    return plans.estimate(plan, budgets.fixed_bytes(model, optimizer))
