"""The plan of least peak for a batch, which `verify` takes if it is given none."""

from typing import Any

import keras

from tfgc._calls import own_step_plans, tracing
from tfgc._calls.call_plans import CallPlans
from tfgc._core.plan import Plan
from tfgc._errors import OptionError
from tfgc._framework import keras_models
from tfgc._planning import batch_specs, by_calls, first_batch, planner
from tfgc._verify.own_step import has_own_step


def plan_for(model: keras.Model, data: tuple[Any, Any, Any]) -> Plan:
    """The plan of least peak; for a functional model with its own `train_step` that of this whole step.

    `data` are `x`, `y` and `sample_weight`. They may be for the model's own `train_step` alone, such as the images of a
    triplet, which calls a model of one image three times.
    """
    batch = keras.utils.pack_x_y_sample_weight(*data)
    own = has_own_step(model) and keras_models.runs_graph(model)
    try:
        if by_calls.applies_to(model, batch):
            return planner.plan(model, example=batch)
        shapes = [tuple(tensor.shape) for tensor in batch_specs.tensors(data[0])]
    except OptionError:
        if not own:
            raise
        shapes = None
    if own:
        specs = batch_specs.specs(batch, None)
        step = own_step_plans.OwnStep(specs, tracing.own_step(model, specs))
        if (plans := own_step_plans.plans_for(model, step, shapes or ())) is not None:
            return plans.least()
        if shapes is None:
            return CallPlans(model, specs).least()
    return first_batch.plan_step(model, data[0], "graph", planner.Request("optimal", None, {})).plan
