"""The plan that an enabled model runs by now."""

import contextlib
from typing import Any

import keras

from tfgc._errors import OptionError
from tfgc._planning import estimates
from tfgc._training.first_call import FirstCall
from tfgc._training.first_step import FirstStep
from tfgc._training.segment_runner import Runner


def runner_of(model: keras.Model) -> Runner | None:
    """What runs the segments of an enabled model, in the call that came last if it has several plans; else None."""
    own = stand_in(model)
    if isinstance(own, FirstCall):
        return own.latest_runner
    return own if isinstance(own, Runner) else None


def predicted_bytes(model: keras.Model) -> int | None:
    """What the plan of an enabled model predicts for a step; None without a plan, or if it does not know the sizes."""
    own = stand_in(model)
    made = own.planned if isinstance(own, FirstStep) else own.latest if isinstance(own, FirstCall) else None
    if made is not None:
        return made.predicted_bytes
    if isinstance(own, Runner) and own.plan.batch_size:
        with contextlib.suppress(OptionError):
            return estimates.estimate(model, own.plan.batch_size, own.plan).needed_bytes
    return None


def stand_in(model: keras.Layer) -> Any:
    """The object whose method tfgc put in place of the `call` of a model or layer; None if there is none."""
    return getattr(vars(model).get("call"), "__self__", None)
