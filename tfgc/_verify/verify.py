"""Prove on the user's model that a plan changes nothing but memory and time.

Plain and planned steps run from the same states: before each planned step every variable
gets the value that it had before the plain one, so that differences do not grow from step
to step. Between the steps the weights move by a per cent.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from tfgc import strategies
from tfgc._core.modes import MODES
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, check_int, did_you_mean
from tfgc._framework import keras_models, model_checks, private_api
from tfgc._planning.request import Request
from tfgc._tracing import example_sizes
from tfgc._training import enable, layer_calls, layer_selectors, stand_ins
from tfgc._training.layer_selectors import Selector
from tfgc._verify.differences import StepComparison, Steps
from tfgc._verify.loss_step import LossStep
from tfgc._verify.own_step import OwnStep
from tfgc._verify.steps import Step, users_code
from tfgc._verify.verdicts import Verdict

_PHASES = 4
_DRAWS = (
    "the step draws by tf.random, from state that each trace has for itself, so no two steps can be compared: draw by "
    "keras.random, which has seeds that verify puts back"
)
_OWN_DRAWS = (
    "the step draws by tf.random, from state that only op-by-op steps can repeat (keras.random draws alike in all)"
)
_OTHER = {"eager": "graph", "graph": "eager", "xla": "graph"}  # by the mode of the plain step


def verify(
    model: keras.Model,
    plan: Plan | None,
    batch: Any,
    *,
    layers: Selector | Iterable[Selector] | None = None,
    loss: Any = None,
    modes: str | Sequence[str] | None = None,
    steps: int = 3,
) -> Verdict:
    """Compare training by a plan with plain training, on your model and your data.

    Runs plain and planned steps from the same state and compares the loss, each gradient
    (None and sparse gradients included), each state variable, random seeds, metrics and `add_loss`
    terms. Plain steps run twice from the same state, to find what is not deterministic. Afterwards the model and its
    variables are as they were before. Plain steps must fit in memory: use a smaller batch where they do not.

    Args:
        model: Any `keras.Model` that is built.
        plan: A `tfgc.Plan`; None for the least peak on this batch. In mode "graph" the step runs by it as a whole, as
            in `fit`, in other modes the model's call and its gradients do. None with `layers`.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`, as `model.train_on_batch` takes them, or what the model's own
            `train_step` takes.
        layers: Layers to recompute in place of a plan, as in `tfgc.enable`.
        loss: What `model.compile` takes. Default: what the model was compiled with; without that, or without `y`, the
            mean square of the outputs, and of the logits that Keras's crossentropies find behind them. A compiled model
            that defines its own `train_step` runs that, unless a loss is given: its optimizers' gradients are compared,
            and all that it returns and writes. In place of the optimizers' updates weights move along their gradients.
        modes: Of "eager" (a loop in Python, compared with plain steps op by op), "compiled" (the same,
            compared with the plain step in `tf.function`), "graph" (the step in `tf.function`, as in `fit`)
            and "xla" (as `fit` on GPUs). Default: the first three, and "xla" if the model was compiled to use it.
        steps: How many steps in a row; one alone would not show a random number that never changes.

    Returns:
        A `Verdict`: true if all is equal. A step that is planned as a whole has to have plain's bits with TensorFlow's
        graph optimizer off: no tolerance decides that. Then all is compared as TensorFlow runs it; printed, the verdict
        shows the worst relative difference and its layer. A difference may be, relative to a gradient's norm (or to
        1e-3 of the largest gradient's, where that is more), 1e-5 in float32, 5e-3 in float16, 5e-2 in bfloat16 and
        1e-12 in float64.
        Where plain TensorFlow differs by more between its modes, or when weights, frozen values and inputs are four
        roundings off, twice that is allowed and listed as tolerated; a gradient that is lost never is. A plain step
        whose loss or gradients are not finite is not equal.

    Raises:
        OptionError: For a loss that Keras does not know, a mode that is unknown or repeats no step, a batch that is
            empty or holds no inputs of the model.
        PlanMismatchError: If the plan is for another model.
        UnsupportedModelError: If the model or its own `train_step` cannot be traced on this batch, if its loss does not
            take it, or if a plain step fails in one of the modes.

    Example:
        >>> import keras, numpy as np, tfgc
        >>> layers = [keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> verdict = tfgc.verify(model, tfgc.plan(model), (np.ones((4, 8)), np.ones((4, 1))), loss="mse")
        >>> bool(verdict)
        True
    """
    model_checks.check_model(model)
    strategies.check_plan(plan)
    asked = modes is not None
    if plan is not None and not plan.operations:
        raise stand_ins.of_other_graph(model, plan)
    if modes is None:
        jitted = getattr(model, "compiled", False) and model.jit_compile
        modes = MODES if jitted else MODES[:3]
    modes = (modes,) if isinstance(modes, str) or not isinstance(modes, Iterable) else tuple(modes)
    for mode in modes or [None]:
        if mode not in MODES:
            raise OptionError(f"modes={modes!r}: give some of {', '.join(MODES)}{did_you_mean(mode, MODES)}")
    steps = check_int("steps", steps)
    if layers is not None and plan is not None:
        raise OptionError("give a plan or layers=, not both")
    example_sizes.refuse_dataset(batch, "batch")
    data = tf.nest.map_structure(_tensor, keras.utils.unpack_x_y_sample_weight(batch))
    if model_checks.is_empty(data[0]):
        raise OptionError("batch: it holds no samples, with which all steps are equal: give a batch with some")
    with contextlib.ExitStack() as stack:
        stack.enter_context(layer_calls.restored_afterwards(model))
        is_own = loss is None and keras_models.has_own_step(model) and model.compiled
        step = OwnStep(model, data) if is_own else LossStep(model, data, loss)
        stack.callback(step.write, before := step.read())
        if step.draws:
            if isinstance(step, LossStep):
                raise OptionError(_DRAWS)
            stack.callback(tf.random.set_seed, cast(Any, private_api.tensorflow_seed()))  # None undoes it
        if step.draws and modes != ("eager",):
            if asked:
                raise OptionError(f"modes={modes!r}: {_OWN_DRAWS}; give modes='eager'")
            modes = ("eager",)
        chosen = None if layers is None else layer_selectors.choose(model, layers)
        if plan is not None:
            step.request = Request.of(plan)
        step.once(*data)
        step.write(before)
        comparison = StepComparison(_coarsest(model))
        for mode in modes:
            is_whole = layers is None and mode == "graph"
            with users_code(
                f"modes={modes!r}: a plain step of {model.name!r}, to compare {mode!r} with, fails",
                "Change what fails, or leave this mode out",
            ):
                befores, baseline = step.run(base := "graph" if mode == "compiled" else mode, steps)
            if is_whole:
                comparison.prove(*step.bits(befores), functools.partial(step.unlike_copies, befores[0]))
            elif layers is None:
                stand_ins.plan_later(model, step.request, verbose=None)
            else:
                enable.switch(model, None, layers=chosen)
            _, planned = step.run(mode, steps, befores, rewritten=is_whole)
            layer_calls.restore_calls(model)
            is_repeated = not step.draws and comparison.repeats(mode, baseline, step.run(base, steps, befores)[1])
            others: Any = functools.partial(_others, step, base, befores) if is_repeated else tuple
            comparison.compare(mode, baseline, planned, others)
    note = f"{_OWN_DRAWS}, so other modes were left out" if step.draws else ""
    return comparison.verdict(modes, steps, step.loss, note)


def _others(step: Step, base: str, befores: list[dict[str, Any]]) -> Iterator[Steps]:
    """Plain steps that differ by rounding alone: in another mode, and from values that are a few roundings off."""
    yield step.run(_OTHER[base], len(befores), befores)[1]
    for phase in range(_PHASES):
        yield step.rounded(base, befores, phase)


def _coarsest(model: keras.Model) -> str:
    """The coarsest dtype that layers compute in."""
    dtypes = {layer.compute_dtype for layer in keras_models.layers_inside(model)}
    return next((d for d in ("bfloat16", "float16", "float32", "float64") if d in dtypes), "float32")


def _tensor(value: Any) -> Any:
    """A tensor, as Keras's data adapters make them."""
    if value is None or tf.is_tensor(value):
        return value
    value = np.asarray(value)
    return tf.convert_to_tensor(value, keras.config.floatx() if value.dtype.kind == "f" else None)
