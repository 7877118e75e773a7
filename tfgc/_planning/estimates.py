"""From a model and a plan to what a step will need."""

from typing import Any

import keras

from tfgc import strategies
from tfgc._core.plan import Plan
from tfgc._framework.model_checks import check_model
from tfgc._planning import ahead
from tfgc._simulate.simulator import Prediction
from tfgc._tracing.synthetic import Shapes


def estimate(
    model: keras.Model,
    batch_size: int | None = None,
    plan: Plan | None = None,
    *,
    mode: str = "graph",
    input_shapes: Shapes | None = None,
    example: Any = None,
    optimizer: keras.Optimizer | str | None = None,
    loss: Any = None,
) -> Prediction:
    """Predict memory and work of one training step; nothing is run.

    Args:
        model, batch_size, input_shapes, example, optimizer, loss: As for `tfgc.plan`.
        plan: A `Plan` for the model. Default: nothing is recomputed.
        mode: `graph` for a step in `tf.function` (as in `fit`), `xla` for a step that XLA compiles, as `fit` does on
            GPUs. What a loop in Python keeps op by op cannot be predicted.

    Returns:
        A `Prediction` of the whole step: `peak_bytes`, `activation_bytes`, `overhead`, `timeline`, and `needed_bytes`,
        which is what a budget is compared with. Work is counted in floating-point operations.

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
    strategies.check_plan(plan)
    size = batch_size if plan is None or example is not None else batch_size or plan.batch_size
    ahead.check_batch(model, size, example)
    return ahead.plans_for(model, size, example, mode, input_shapes, loss, optimizer).estimate(plan)
