"""Let a model run by a plan of calls."""

from typing import Any

import keras

from tfgc._calls import names
from tfgc._core.plan import Plan
from tfgc._framework import weight_gradients
from tfgc._training import layer_calls
from tfgc._training.segment_runner import Runner


def run_by_calls(model: keras.Model, plan: Plan, **options: Any) -> None:
    """Replace the calls of the layers that a plan recomputes, and those of functional parts with plans of their own.

    What was enabled of the model's parts before is undone; its own methods stay.

    Raises:
        PlanMismatchError: If the plan was made for another model.
    """
    layers, parts = names.layers_of(model, plan)
    options["backlog"] = weight_gradients.Backlog.of(plan)
    runners = [(part, Runner(part, of_part, under_tapes=True, **options)) for part, of_part in parts]
    layer_calls.restore_parts(model)
    layer_calls.replace_calls(model, layers, plan, **options)
    for part, runner in runners:
        part.call = runner.call
