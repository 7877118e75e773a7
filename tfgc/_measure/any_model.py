"""The training step that is measured of a model without a graph: its own, or that of Keras.

A model that is not compiled gets SGD and a squared error, which functional models are measured with.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.plan import Plan
from tfgc._core.tensors import Spec
from tfgc._error_texts import one_line
from tfgc._errors import OptionError, UnsupportedModelError
from tfgc._framework import keras_models
from tfgc._measure import examples
from tfgc._planning import ahead, step_traces
from tfgc._planning.request import Request
from tfgc._training.rewritten_function import RewrittenFunction, Settings

_LEARNING_RATE = 0.01


def check(model: keras.Model) -> None:
    """Raise `OptionError` for a model with a graph."""
    if not ahead.applies_to(model):
        raise OptionError(
            f"an example is for models without a graph of layers, and {model.name!r} has one: "
            "leave it out, and give open sizes as input shapes"
        )


def takes_example(model: keras.Model, example: Any) -> bool:
    """Whether a model is measured on an example; raise if one is missing, or given for a model with a graph."""
    if example is None:
        ahead.check_has_graph(model)
        return False
    check(model)
    return True


def completed(model: keras.Model, example: Any, batch_size: int, optimizer: Any = None) -> Any:
    """Build a model, compile it if it is not, and return the portable example, with targets if the step needs them.

    Raise `OptionError` if the example holds too little, or an optimizer is given for a model that is compiled.
    """
    own_step = keras_models.has_own_step(model)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(example)
    if model.compiled:
        if y is None and model.loss is not None and not own_step:
            raise OptionError(f"{model.name!r} is compiled, so its step takes targets: give example=(x, y)")
        if optimizer is not None:
            raise OptionError(f"optimizer={optimizer!r}: {model.name!r} is compiled with one; compile it with this one")
    elif own_step:
        raise OptionError(f"{model.name!r} has a train_step of its own: compile it in the function that builds it")
    else:
        outputs, samples = _outputs(model, examples.batch(x, batch_size)), examples.samples(x)
        if y is None:
            y = tf.nest.map_structure(lambda t: Spec((samples, *t.shape[1:]), t.dtype.name), outputs)
        losses = tf.nest.map_structure(lambda _: "mse", outputs)
        model.compile(keras.optimizers.SGD(_LEARNING_RATE) if optimizer is None else optimizer, losses)
        example = keras.utils.pack_x_y_sample_weight(x, y, weight)
    if not keras_models.is_built(model):
        step_traces.build(model, examples.batch(example, batch_size))
    return example


def step(model: keras.Model, mode: str, plan: Plan | None = None) -> Callable[[Any], Any]:
    """One step of training, as `traced`; it returns its loss, or what stands for it."""

    def run(data: Any) -> Any:
        logs: Any = model.train_step(data)
        if isinstance(logs, dict) and "loss" in logs:
            return logs["loss"]
        return tf.add_n([tf.cast(tf.reduce_sum(value), tf.float32) for value in tf.nest.flatten(logs)])

    return traced(run, mode, plan, autograph=False)


def traced(step: Callable[..., Any], mode: str, plan: Plan | None = None, *, autograph: bool = True) -> Any:
    """A step as it runs in a mode, or by a plan."""
    if plan is not None and mode == "graph":
        return RewrittenFunction(step, Settings({"autograph": autograph}, {}, Request.of(plan), verbose=False))
    if mode not in ("graph", "xla"):
        return step
    return tf.function(step, autograph=autograph, jit_compile=mode == "xla")


def _outputs(model: keras.Model, x: Any) -> Any:
    """The outputs of a model, symbolically; builds it."""
    call = tf.function(lambda x: model(x, training=True), autograph=False)
    try:
        return call.get_concrete_function(x).structured_outputs
    except Exception as error:  # the model is the user's code
        raise UnsupportedModelError(f"{model.name!r} cannot be called on this example: {one_line(error)}") from error
