"""A step of a functional model with a loss and an optimizer, on a batch of the sizes that the model declares."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfgc._framework import keras_models, keras_names
from tfgc._framework.trainer import Trainer
from tfgc._tracing import example_sizes, functional_graphs, synthetic


def step(model: Any, loss: Any, optimizer: Any) -> Callable:
    """One with this loss and optimizer, or those that it is compiled with, which are no part of the model."""
    metrics, weighted = keras_models.compiled_metrics(model) or (None, None) if loss is None else (None, None)
    if loss is None:
        loss = model.loss
    elif len(model.outputs) > 1:
        loss = functional_graphs.functional_of(model).structured_outputs([loss] * len(model.outputs))
    trainer = Trainer(model, model)
    trainer.compile(loss=loss, metrics=metrics, weighted_metrics=weighted)
    if any(isinstance(v.value, tf.distribute.DistributedValues) for v in model.trainable_variables):
        optimizer = None  # TensorFlow updates variables of a strategy in its replicas alone
    if optimizer is not None and not optimizer.built:
        optimizer = keras_names.copied(optimizer)

    def run(data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            value: Any = trainer.compute_loss(x, y, outputs)
            scaled = value if optimizer is None else optimizer.scale_loss(value)
        gradients = tape.gradient(scaled, [v.value for v in model.trainable_variables])
        if optimizer is None or keras_models.has_replicas(model):  # which no step outside of them can update
            return value, gradients
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return {**trainer.compute_metrics(x, y, outputs), "loss": value}

    return run


def specs(model: Any, batch_size: int, input_shapes: Any) -> tuple[Any, list[tf.TensorSpec]]:
    """Inputs of a functional model as specs, and its outputs; numbers in place of specs of strings."""
    x, outputs = synthetic.specs(model, batch_size, input_shapes)
    if any(spec.dtype == "string" for spec in tf.nest.flatten(x)):
        x, _ = synthetic.batch(model, batch_size, input_shapes)
    return x, outputs


def batch(model: Any, batch_size: int, input_shapes: Any, example: Any, loss: Any) -> Any:
    """The batch `(x, y)` that the step runs on, the example or specs; arguments as for `tfgc.plan`."""
    if not keras_models.runs_graph(model) or (example is not None and _has_targets(model, example)):
        return example
    if example is not None:
        input_shapes = example_sizes.shapes(model, example)[1]
    x, outputs = specs(model, batch_size, input_shapes)
    targets = [_target(one, spec) for one, spec in zip(_losses(model, loss, len(outputs)), outputs, strict=True)]
    return x, functional_graphs.functional_of(model).structured_outputs(targets)


def _has_targets(model: Any, example: Any) -> bool:
    if not isinstance(example, tuple | list) or len(example) < 2:
        return False
    return len(functional_graphs.functional_of(model).inputs) == 1 or isinstance(example[0], tuple | list | dict)


def _losses(model: Any, loss: Any, outputs: int) -> list[Any]:
    """The loss of each output; None for one without."""
    if loss is None and model.compiled:
        return keras_models.compiled_losses(model)
    return ["mse" if loss is None else loss] * outputs


def _target(loss: Any, output: tf.TensorSpec) -> tf.TensorSpec:
    """A target that a loss takes: of the output's shape, or a class instead of its last dimension."""
    if loss is None:
        return output
    function = tf.function(keras_names.loss(loss), autograph=False)
    for target in (output, tf.TensorSpec(output.shape[:-1], "int32")):
        try:
            function.get_concrete_function(target, output)
        except (ValueError, TypeError, tf.errors.InvalidArgumentError):
            continue
        return target
    return output
