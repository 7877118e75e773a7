"""Whether what was given as a model is one that tfgc can train, what to call where it is not, and where and on what."""

import reprlib
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import OptionError, UnsupportedModelError


def check_model(model: Any) -> None:
    """Raise `UnsupportedModelError` for anything else than a model of Keras that runs on TensorFlow."""
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(f"{reprlib.repr(model)} is not a keras.Model: {instead_of_model(model)}")
    check_backend(f"{model.name!r}")


def check_backend(what: str) -> None:
    """Raise `UnsupportedModelError` where Keras runs on another framework than TensorFlow."""
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise UnsupportedModelError(
            f"{what} runs on Keras's backend {backend!r}, and tfgc recomputes what TensorFlow runs: set "
            'KERAS_BACKEND=tensorflow in the environment before Python imports Keras, or "backend": "tensorflow" in '
            "~/.keras/keras.json"
        )


def instead_of_model(given: Any) -> str:
    """What to do where something else was given as a model."""
    kind = given if isinstance(given, type) else type(given)
    if any(base.__module__.partition(".")[0] == "tf_keras" for base in kind.__mro__):
        return (
            "it is of tf_keras, and tfgc takes models of Keras 3 (import keras). In a loop of your own, "
            "tfgc.recompute(layer) recomputes one of its layers"
        )
    if isinstance(given, type):
        made = f", as {given.__name__}(...) makes one" if issubclass(given, keras.Model) else ""
        return f"it is a class: give a model{made}"
    if isinstance(given, list | tuple) and given:
        if all(isinstance(one, keras.Model) for one in given):
            return "give one model at a time"
        if all(isinstance(one, keras.Layer) for one in given):
            return "keras.Sequential(layers) makes a model of layers"
    if isinstance(given, keras.Layer):
        return "it is a layer: in a loop of your own, tfgc.recompute(layer) recomputes it"
    if isinstance(given, tf.Module):
        return "it is a tf.Module: tfgc.recompute(module.method) recomputes one of its methods"
    if callable(given):
        return "it is a function: tfgc.recompute(function) recomputes it. If it builds a model, give what it returns"
    if isinstance(given, str):
        return "give the model itself; tfgc.zoo.build('resnet50'), for example, makes one of a name"
    return "give the model itself" + " (compile, build and fit return something else)" * (given is None)


def check_step(given: Any) -> None:
    """Raise `OptionError` for what is no Python function that can take the place of a training step."""
    what, advice = reprlib.repr(given), None
    if isinstance(given, keras.Model):
        what, advice = f"the model {given.name!r}", "tfgc.enable(model) has it train in less memory"
    elif isinstance(given, keras.Layer):
        what, advice = f"the layer {given.name!r}", "in a step of your own, tfgc.recompute(layer) recomputes it"
    elif any(base.__module__.partition(".")[0] == "tf_keras" for base in type(given).__mro__):
        advice = "give the function that trains it"
    elif isinstance(given, type):
        advice = "it is a class; give the function that runs a step"
    elif hasattr(given, "get_concrete_function") or isinstance(given, tf.types.experimental.ConcreteFunction):
        advice = "it is traced already; use tfgc.function in place of tf.function, or give its python_function"
    elif isinstance(given, int | float | str):
        advice = f"a budget has a name: tfgc.function(budget={given!r})"
    elif not callable(given):
        advice = "give the function itself, and call what this returns: tfgc.function(step)(x)"
    if advice is not None:
        raise OptionError(f"function takes a training step, not {what}: {advice}")


def refuse_tf1_graph(name: str) -> None:
    """Raise where operations go into a TensorFlow 1 graph: `tf.custom_gradient` follows no variables there.

    A `tf.function`, a `tf.data` pipeline, `tf.compat.v1.wrap_function` and Keras's scratch graphs build functions.
    """
    if not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function:
        raise UnsupportedModelError(
            f"{name} was called in a TensorFlow 1 graph (tf.Graph, tf.compat.v1.Session), where nothing can be "
            "recomputed: call it eagerly or inside a tf.function"
        )


def is_empty(*values: Any) -> bool:
    """Whether tensors are known to have no elements, all of them, so that there is nothing to save.

    TensorFlow's optimizer kills the process on some graphs with sizes of zero (it replaces a multiplication by a tile
    and divides by the size, in ReplaceMulWithBroadcastByTile) and does not on others, so such calls run plainly.
    """
    shapes = [value.shape for value in tf.nest.flatten(values) if tf.is_tensor(value) and value.shape.rank != 0]
    return bool(shapes) and all(shape.rank and 0 in shape.as_list() for shape in shapes)
