"""Planning where a model is called, and what is said of it."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfgc._core.modes import Mode
from tfgc._core.plan import Plan
from tfgc._errors import NothingSavedWarning, TfgcError, collected_warnings, warn
from tfgc._framework import isolated_traces, keras_state, private_api, python_random, whole_steps
from tfgc._planning.promised import PlannedStep
from tfgc._progress import PATIENCE
from tfgc._units import format_bytes, format_needs, format_percent, format_seconds

Made = TypeVar("Made")
_HIDDEN = "kernels take more than what is simulated, and what is saved does not show"


def mode_of_call() -> Mode:
    """The mode of the call that runs now."""
    if tf.executing_eagerly():
        return "compiled"
    return "xla" if private_api.in_xla() else "graph"


def may_plan(training: bool | None) -> bool:
    """Whether the call that runs now, with this `training`, is one to plan for."""
    # Not if it only shows shapes, or belongs to the step of another model, which is traced to be planned or compared.
    return private_api.trains(training) and not (keras_state.in_symbolic_scope() or whole_steps.is_part())


def planned(model: keras.Model, plan: Callable[[], Made], *, verbose: bool | None) -> Made:
    """What `plan` makes in a thread of its own, outside of all that surrounds the call of the model.

    Its warnings are given here, so that they point at the caller, and a line says so when it takes long. Random numbers
    that layers draw in its traces are drawn again by the call.
    """
    variables = len(model.variables)

    def collected() -> tuple[Made, list[tuple[str, type[Warning]]]]:
        redrawn = python_random.streams_put_back(unless=lambda: len(model.variables) != variables)
        with collected_warnings() as found, redrawn:
            return plan(), found

    def on_wait() -> None:
        if verbose:
            print(f"tfgc: planning {model.name!r} ...", file=sys.stderr, flush=True)

    try:
        made, found = isolated_traces.in_own_thread(collected, PATIENCE, on_wait)
    except TfgcError as error:
        private_api.let_pass(error)
        raise
    for message, category in found:
        warn(message, category)
    return made


def report(name: str, made: PlannedStep, *, verbose: bool | None) -> None:
    """Warn where nothing is gained that was not asked for, else print a line if wanted; `verbose=None`: neither."""
    if verbose is None:
        return
    if made.unchanged is not None and not made.is_asked_for:
        message = f"{name!r} trains as before, since recomputing would save less than 5 % of a step: {made.unchanged}"
        warn(message, NothingSavedWarning)
        return
    warn_of_host(name, made.plan)
    if verbose:
        print(line(name, made), file=sys.stderr, flush=True)


def warn_of_host(name: str, plan: Plan) -> None:
    """Warn where a plan stores on the host what has nowhere else to be."""
    stored = sum(segment.host_bytes or 0 for segment in plan.segments)
    if any(segment.offload for segment in plan.segments) and len(tf.config.list_logical_devices()) == 1:
        warn(
            f"{name!r}: the plan stores {format_bytes(stored) if stored else 'checkpoints'} on the host, and "
            "TensorFlow has no accelerator here: nothing is copied, and a step needs that much more than predicted. "
            "Plan without host memory to train here",
            NothingSavedWarning,
        )


def line(name: str, made: PlannedStep) -> str:
    r"""The strategy, what the step needs and of how much, the overhead, and how long planning took.

    Example:
        >>> from tfgc import Plan
        >>> made = PlannedStep(Plan((), "sqrt", ()), "graph", 8, 4_000_000, 8_000_000, 0.25, 1.2)
        >>> print(*line("net", made).split(", "), sep="\n")
        tfgc: 'net' by 'sqrt'
        needs 4 MB of 8 MB
        25 % more work
        batch of 8
        planned in 1.2 s
    """
    words = [f"tfgc: {name!r} by {made.plan.strategy!r}", promise(made.plan, made.predicted_bytes, made.plain_bytes)]
    if made.overhead is not None:
        recomputes = made.overhead or any(segment.mode == "recompute" for segment in made.plan.segments)
        kept = "nothing recomputed" if made.unchanged is None else f"nothing recomputed: {made.unchanged}"
        words.append(f"{format_percent(made.overhead, '.0f')} more work" if recomputes else kept)
    words.append("batch size unknown" if made.batch_size is None else f"batch of {made.batch_size}")
    words.append(f"planned in {format_seconds(made.seconds)}")
    return ", ".join(words)


def measured(made: Any) -> str:
    """What a `PlannedStep` or `PlanStatus` was measured to need, and whether what is saved shows in that."""
    words = f"{format_bytes(made.measured_bytes)} measured"
    return words if shows(made) else f"{words}: {_HIDDEN}"


def shows(made: Any) -> bool:
    """Whether what was measured is less than what the plain step is simulated to need, if anything is saved."""
    return made.unchanged is not None or made.plain_bytes is None or made.measured_bytes < made.plain_bytes


def promise(plan: Plan, predicted_bytes: int | None, plain_bytes: int | None) -> str:
    """What the step needs and of how much; the share of activations where bytes are unknown."""
    outlook = plan.outlook
    if predicted_bytes is not None:
        return format_needs(predicted_bytes, plain_bytes, outlook and outlook.budget_bytes)
    if outlook is None:
        is_on = any(segment.mode == "recompute" for segment in plan.segments)
        return f"nothing {'predicted' if is_on else 'recomputed'}, sizes are open"
    return f"needs {format_percent(1 - outlook.cut_off, '.0f')} of the plain step's activations"
