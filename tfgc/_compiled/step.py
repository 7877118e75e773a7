"""One training step of a model, as XLA's compiler gets it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.plan import Plan
from tfgc._error_texts import one_line
from tfgc._errors import OptionError, UnsupportedModelError, check_int
from tfgc._framework import keras_models, keras_names, xla
from tfgc._framework.trainer import Trainer
from tfgc._tracing import synthetic
from tfgc._training import enable, layer_calls


@dataclasses.dataclass(frozen=True)
class Batch:
    """Shapes and dtypes of one batch, as structures of `tf.TensorSpec`, and the loss that `model.compile` takes."""

    x: Any  # inputs, in the model's structure
    y: Any  # targets
    loss: Any


def batch(
    model: keras.Model,
    batch_size: int | None,
    input_shapes: Mapping[str, Sequence[int | None]] | None,
    example: Any,
    loss: Any,
) -> Batch:
    """The batch that a step takes: of an example's sizes, or of the model's inputs."""
    if not model.built:
        raise UnsupportedModelError(f"{model.name!r} is not built yet: call it on a batch first")
    if batch_size is not None:
        batch_size = check_int("batch_size", batch_size)
    if example is None:
        if loss is not None:
            raise OptionError(f"loss={loss!r} needs targets: give example=(x, y)")
        if batch_size is None or not keras_models.runs_graph(model):
            raise OptionError(
                f"{model.name!r}: give example=, a batch (x, y) as `fit` gets it, or for a functional model batch_size"
            )
        x, y = synthetic.specs(model, batch_size, input_shapes)
        return Batch(x, y, "mse")
    x, y, _ = keras.utils.unpack_x_y_sample_weight(example)
    if y is None:
        raise OptionError("example= needs targets: give (x, y)")
    if loss is not None:
        keras_names.check_losses(loss, model)
    x, y = (tf.nest.map_structure(lambda part: _spec(part, batch_size), side) for side in (x, y))
    return Batch(x, y, loss or ((model.loss if model.compiled else None) or "mse"))


def stable_hlo(model: keras.Model, plan: Plan | None, batch: Batch, optimizer: keras.Optimizer | str | None) -> bytes:
    """The whole training step of a model by a plan, or as plain Keras trains it; the model is as before afterwards."""
    if not model.trainable_weights:
        raise UnsupportedModelError(f"{model.name!r} has no trainable weights, so no step trains it")
    with layer_calls.restored_afterwards(model):
        if plan is not None:
            enable.switch(model, plan)
        trainer = Trainer(model, lambda x, training, mask: model(x, training=training))
        trainer.compile(_fresh(model, optimizer), batch.loss, auto_scale_loss=False)
        trainer.optimizer.build(model.trainable_variables)

        def step(x: Any, y: Any) -> Any:
            return trainer.step(x, y)["loss"]

        compiled: Any = tf.function(step, jit_compile=True, autograph=False)
        try:
            return xla.stable_hlo(compiled.get_concrete_function(batch.x, batch.y), tf.nest.flatten((batch.x, batch.y)))
        except ValueError as error:
            raise UnsupportedModelError(f"{model.name!r} cannot be compiled by XLA: {one_line(error)}") from error


def _fresh(model: keras.Model, optimizer: keras.Optimizer | str | None) -> Any:
    """An optimizer of this kind that is not built; default: of the kind that the model is compiled with, or Adam."""
    chosen: Any = keras_names.optimizer(optimizer or getattr(model, "optimizer", None) or "adam")
    try:
        return type(chosen).from_config(chosen.get_config())
    except Exception as error:  # Constructors and configs of other people's classes may do anything.
        raise UnsupportedModelError(
            f"optimizer {type(chosen).__name__} cannot be made again from its config: {one_line(error)}. Give its "
            "class a get_config() that returns the arguments of its constructor, or pass optimizer="
        ) from error


def _spec(part: Any, batch_size: int | None) -> tf.TensorSpec:
    """The spec of a part of an example, with another batch size if one is given."""
    if isinstance(part, tf.TensorSpec) or tf.is_tensor(part):
        tensor, dtype = part, part.dtype
    else:
        tensor = tf.convert_to_tensor(part)
        dtype = keras.config.floatx() if tensor.dtype.is_floating else tensor.dtype
    return tf.TensorSpec((batch_size or tensor.shape[0], *tensor.shape[1:]), dtype)
