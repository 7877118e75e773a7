"""The plan that an enabled model runs by now."""

import contextlib
from typing import Any

import keras

from tfgc._errors import OptionError, UnsupportedModelError
from tfgc._planning import estimates
from tfgc._training import layer_calls
from tfgc._training.first_call import FirstCall
from tfgc._training.first_step import FirstStep
from tfgc._training.segment_runner import Runner


def runner_of(model: keras.Model) -> Runner | None:
    """What runs the segments of an enabled model, in the call that came last if it has several plans; else None."""
    own = stand_in(model)
    if isinstance(own, FirstCall):
        made = own.latest_made  # looked up once: another thread may replace it
        return made and made.runner
    return own if isinstance(own, Runner) else None


def predicted_bytes(model: keras.Model) -> int | None:
    """What the plan of an enabled model predicts for a step of `fit`; None where it does not know the sizes."""
    own = stand_in(model)
    made = own.latest if isinstance(own, FirstCall | FirstStep) else None
    if made is not None:
        return made.predicted_bytes
    plan = own.plan if isinstance(own, Runner) else layer_calls.plan_of(model)
    if plan is not None and plan.batch_size:
        # Sizes that are open, a plan by calls for a loop in Python, or for a model whose sizes only its batches have.
        with contextlib.suppress(OptionError, UnsupportedModelError):
            return estimates.estimate(model, plan.batch_size, plan, mode=mode_of_fit(model)).needed_bytes
    return None


def mode_of_fit(model: Any) -> str:
    """The mode in which `fit` runs the steps of a compiled model."""
    return "compiled" if model.run_eagerly else "xla" if model.jit_compile else "graph"


def stand_in(model: keras.Layer) -> Any:
    """The object whose method tfgc put in place of the `call` of a model or layer; None if there is none."""
    return getattr(vars(model).get("call"), "__self__", None)
