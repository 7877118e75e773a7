"""What was planned for a kind of call of a model, and plans of its layers."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.modes import Mode
from tfgc._planning import batch_specs, first_batch
from tfgc._planning.first_batch import PlannedStep
from tfgc._planning.request import Request
from tfgc._planning.trace_plans import TracePlans
from tfgc._tracing import example_sizes
from tfgc._training.segment_runner import Runner


@dataclasses.dataclass(eq=False)
class PlannedCall:
    """What was planned for a kind of call: a step, or layers and what runs them."""

    step: PlannedStep
    plans: TracePlans | None = None
    runner: Runner | None = None
    is_reported: bool = False
    weights: int = 0  # that the model had
    sizes: tuple = ()  # of what it was planned for


def planned(
    model: keras.Model, request: Request, rows: int | None, mode: Mode, args: tuple, kwargs: dict[str, Any]
) -> PlannedCall:
    """Plan the layers of a model for a call; `rows` are the samples where the batch is open."""

    def specs(values: Any) -> Any:
        return tf.nest.map_structure(lambda t: batch_specs.spec(t, rows) if tf.is_tensor(t) else t, values)

    inputs = specs(example_sizes.as_declared(model, args[0] if args else kwargs["inputs"]))
    step = first_batch.plan_step(model, inputs, mode, request)
    if step.unchanged is not None:
        return PlannedCall(step)
    return PlannedCall(step, runner=Runner(model, step.plan))
