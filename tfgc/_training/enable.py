"""Switch a model to a plan and back, without making another model of it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras

from tfgc._core.plan import Plan
from tfgc._errors import OptionError, UnsupportedModelError
from tfgc._framework import keras_models
from tfgc._planning import planner
from tfgc._tracing import keras_graph
from tfgc._training import layer_calls, stale_traces
from tfgc._training.segment_runner import Runner

Model = TypeVar("Model", bound=keras.Model)


def enable(
    model: Model,
    plan: Plan | None = None,
    *,
    budget: int | str | None = None,
    strategy: str | Callable[..., Plan] | None = None,
    layers: Sequence[keras.Layer | str] | None = None,
    wrap: Callable | None = None,
    compile_segments: bool = True,
    check_replay: bool = False,
) -> Model:
    """Make `model` train by a plan from now on, in `fit` and in custom loops.

    The model object stays the same, with its weights, names, `summary`,
    `save`, `evaluate`, `predict` and callbacks. `model(x, training=True)` and
    `model(x)` run the plan; an explicit `training=False` runs the original
    code. Gradients, losses and states are those of the plain model; memory falls
    as `plan.explain()` says, for about one more forward pass of time. In
    eager loops each segment is compiled, which makes up for some or all of it.
    Enabling again replaces the plan, and what was enabled of the model's parts. Layers
    may be frozen and unfrozen at any time. When the model changes (`Sequential.add`, `pop`), its plan is kept
    where it still fits; otherwise a new one is made, unless you gave the plan.

    Every Keras model that holds this one (a GAN, a distiller) trains by the plan too, from its next step on: its
    functions are traced again.

    Args:
        model: A built `keras.Sequential` or functional model; with `layers`, any `keras.Model`.
        plan: A `tfgc.Plan` for it. Default: `tfgc.plan(model)`.
        budget: Bytes that a step may use, in place of a plan, for strategies
            that honour a budget.
        strategy: Name of a strategy, in place of a plan; for one with
            options, give `tfgc.plan(model, strategy=..., segments=...)`.
        layers: Layers of the model to recompute, each as one segment, in place of a plan: objects, names
            (every layer with that name) or paths. For subclassed models, or blocks picked by hand. A chosen
            layer stores its inputs; where one is inside another, the outer one counts.
        wrap: `tf.recompute_grad`, to let it replay each segment, for
            comparison. Default: tfgc's replay.
        compile_segments: Whether eager calls run each segment as a
            `tf.function`. False runs op by op, bit-equal to plain eager code.
        check_replay: Compare shapes, dtypes and a checksum of each layer's outputs between the
            first run and the replay. Costs a few passes over every output; not available under XLA.

    Returns:
        The model.

    Raises:
        UnsupportedModelError: If the model is subclassed and `layers` is not given (the message names functional
            parts that can be enabled), unbuilt or has no weights.
        PlanMismatchError: If the plan was made for another model; in a call, if the model has changed since.
        ReplayMismatchError: In the backward pass of an eager step, if `check_replay` finds a difference; a
            `tf.function` raises `tf.errors.InvalidArgumentError` with the same message.

    Warns:
        StaleTraceWarning: If a `tf.function` that you wrote has trained with the model: TensorFlow keeps using its
            trace.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
        >>> tfgc.enable(model) is model
        True
        >>> tfgc.disable(model) is model
        True
    """
    if not isinstance(plan, Plan | None):
        raise OptionError(f"plan={plan!r} is not a tfgc.Plan: make one with tfgc.plan(model, ...), or name a strategy=")
    if wrap is not None and not callable(wrap):
        raise OptionError(f"wrap={wrap!r} is not a function; give tf.recompute_grad, for example")
    if plan is not None and (strategy is not None or budget is not None):
        raise OptionError(f"give a plan, or strategy={strategy!r} and budget={budget!r} to make one, not both")
    if check_replay and wrap is not None:
        raise OptionError(f"check_replay=True compares the two runs of tfgc's replay: leave out wrap={wrap!r}")
    options = {"wrap": wrap, "compile_segments": compile_segments, "check_replay": check_replay}
    switch(model, plan, strategy, budget, layers, **options)
    changed = [layer for layer in keras_models.layers_inside(model) if keras_graph.is_patched_call(layer)]
    stale_traces.renew(model, "tfgc.enable", changed)
    return model


def switch(
    model: keras.Model,
    plan: Plan | None,
    strategy: str | Callable[..., Plan] | None = None,
    budget: int | str | None = None,
    layers: Sequence[keras.Layer | str] | None = None,
    **options: Any,
) -> None:
    """Do what `enable` does, without renewing what was traced before."""
    if layers is not None:
        if plan is not None or strategy is not None or budget is not None:
            raise OptionError("layers= names what to recompute: leave plan, strategy and budget out")
        if not isinstance(model, keras.Model):
            raise UnsupportedModelError(f"{model!r} is not a keras.Model")
        chosen = layer_calls.choose(model, layers)
        layer_calls.restore_calls(model)
        layer_calls.replace_calls(model, chosen, **options)
    else:
        keras_graph.functional_of(model)
        if not model.weights:
            raise UnsupportedModelError(
                f"{model.name!r} has no weights, so there is nothing to train and nothing to recompute"
            )
        if plan is None:
            replan = functools.partial(planner.plan, model, strategy=strategy, budget=budget)
            runner = Runner(model, replan(), replan=replan, **options)
        else:
            runner = Runner(model, plan, **options)
        layer_calls.restore_calls(model)
        model.call = runner.call


def disable(model: Model) -> Model:
    """Undo `enable`: the model and its layers run their original code again.

    So do Keras models that hold it. A `StaleTraceWarning` names each `tf.function` that keeps its trace, as with
    `enable`.

    Returns:
        The model.

    Example:
        >>> import keras, numpy as np, tfgc
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        >>> before = model(np.ones((2, 8)))
        >>> model = tfgc.disable(tfgc.enable(model, strategy="uniform"))
        >>> bool(np.array_equal(before, model(np.ones((2, 8)))))
        True
    """
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(f"{model!r} is not a keras.Model")
    changed = layer_calls.restore_calls(model)
    if changed:
        stale_traces.renew(model, "tfgc.disable", changed)
    return model
