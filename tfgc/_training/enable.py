"""Switch a model to a plan and back, without making another model of it."""

import functools

import keras

from tfgc._core.plan import Plan
from tfgc._errors import OptionError, UnsupportedModelError
from tfgc._framework import keras_models
from tfgc._planning import planner
from tfgc._tracing import keras_graph
from tfgc._training import layer_calls, stale_traces
from tfgc._training.segment_runner import Runner


def enable(
    model,
    plan=None,
    *,
    budget=None,
    strategy=None,
    layers=None,
    wrap=None,
    compile_segments=True,
    check_replay=False,
):
    """Make `model` train by a plan from now on: in `fit` and in loops of your own.

    The model object stays the same, with its weights, names, `summary`,
    `save`, `evaluate`, `predict` and callbacks. `model(x, training=True)` and
    `model(x)` run the plan; an explicit `training=False` runs the original
    code. Gradients, losses and states are those of the plain model; memory falls
    as `plan.explain()` says, for about one more forward pass of time. In
    eager loops each segment is compiled, which makes up for some or all of it.
    Enabling again replaces the plan, and what was enabled of the model's parts. Layers
    may be frozen and thawed at any time. A model that changes (`Sequential.add`, `pop`) is followed: by
    its plan where that still fits, else by a new one if the plan was not given by you.

    Every Keras model that holds this one (a GAN, a distiller) follows too, from its next step on: what
    it had traced is traced again.

    Args:
        model: A built `keras.Sequential` or functional model; with `layers`, any `keras.Model`.
        plan: A `tfgc.Plan` for it. Default: `tfgc.plan(model)`.
        budget: Bytes that a step may use, in place of a plan, for strategies
            that honour a budget.
        strategy: Name of a strategy, in place of a plan; for one with
            options, give `tfgc.plan(model, strategy=..., segments=...)`.
        layers: Layers of the model to recompute, each by itself, in place of a plan: objects, names
            (every layer so named) or paths. For subclassed models, or blocks picked by hand. A chosen
            layer stores its inputs; of one inside of another the outer one counts.
        wrap: `tf.recompute_grad`, to let it do the replay of each segment, for
            comparison. Default: tfgc's own.
        compile_segments: Whether eager calls run each segment as a
            `tf.function`. False runs op by op, bit-equal to plain eager code.
        check_replay: Compare shapes, dtypes and a checksum of what each layer makes between the
            first run and the replay. Costs a few passes over every output; not under XLA.

    Returns:
        The model.

    Raises:
        UnsupportedModelError: If the model is subclassed and `layers` is not given (the message names functional
            parts that can be enabled), unbuilt or has no weights.
        PlanMismatchError: If the plan was made for another model; in a call, if the model has changed since.
        ReplayMismatchError: In the backward pass of an eager step, if `check_replay` finds a difference; a
            `tf.function` raises `tf.errors.InvalidArgumentError` with the same message.

    Warns:
        StaleTraceWarning: If a `tf.function` of your own has trained with the model: TensorFlow goes on with its trace.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
        >>> tfgc.enable(model) is model
        True
        >>> tfgc.disable(model) is model
        True
    """
    if not isinstance(plan, Plan | None):
        raise OptionError(f"plan={plan!r} is no tfgc.Plan: make one with tfgc.plan(model, ...), or name a strategy=")
    if wrap is not None and not callable(wrap):
        raise OptionError(f"wrap={wrap!r} is no function; tf.recompute_grad is one that can be given")
    if plan is not None and (strategy is not None or budget is not None):
        raise OptionError(f"give a plan, or strategy={strategy!r} and budget={budget!r} to make one, not both")
    if check_replay and wrap is not None:
        raise OptionError(f"check_replay=True compares tfgc's own two runs: leave wrap={wrap!r} out")
    how = {"wrap": wrap, "compile_segments": compile_segments, "check_replay": check_replay}
    switch(model, plan, strategy, budget, layers, **how)
    changed = [layer for layer in keras_models.layers_inside(model) if keras_graph.is_patched_call(layer)]
    stale_traces.renew(model, "tfgc.enable", changed)
    return model


def switch(model, plan, strategy=None, budget=None, layers=None, **how):
    """Do what `enable` does, for a while: what was traced before is left alone."""
    if layers is not None:
        if plan is not None or strategy is not None or budget is not None:
            raise OptionError("layers= names what to recompute: leave plan, strategy and budget out")
        if not isinstance(model, keras.Model):
            raise UnsupportedModelError(f"{model!r} is no keras.Model")
        chosen = layer_calls.choose(model, layers)
        layer_calls.restore_calls(model)
        layer_calls.replace_calls(model, chosen, **how)
    else:
        keras_graph.functional_of(model)
        if not model.weights:
            raise UnsupportedModelError(
                f"{model.name!r} has no weights, so there is nothing to train and nothing to recompute"
            )
        replan = None
        if plan is None:
            replan = functools.partial(planner.plan, model, strategy=strategy, budget=budget)
        runner = Runner(model, plan or replan(), replan=replan, **how)
        layer_calls.restore_calls(model)
        model.call = runner.call


def disable(model):
    """Undo `enable`: the model and its layers run their own code again. Returns the model.

    So do Keras models that hold it, and a `StaleTraceWarning` names what goes on, as with `enable`.

    Example:
        >>> import keras, numpy as np, tfgc
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        >>> before = model(np.ones((2, 8)))
        >>> model = tfgc.disable(tfgc.enable(model, strategy="uniform"))
        >>> bool(np.array_equal(before, model(np.ones((2, 8)))))
        True
    """
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(f"{model!r} is no keras.Model")
    changed = layer_calls.restore_calls(model)
    if changed:
        stale_traces.renew(model, "tfgc.disable", changed)
    return model
