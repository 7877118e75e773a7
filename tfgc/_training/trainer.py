"""A training step with Keras's reading of losses and metrics."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class Trainer(keras.Model):
    """A model run by another `call`, with Keras's reading of `loss` and `metrics`.

    It is a separate model, so that compiling it leaves the user's as it is.

    Args:
        model: The model whose weights are trained.
        call: What runs it, with the arguments of a model's `call`.
    """

    def __init__(self, model: keras.Model, call: Callable[..., Any]) -> None:
        super().__init__(name="train_step", dtype=model.dtype_policy, autocast=False)
        self.model = model
        self.output_names = getattr(model, "output_names", None)
        self._run = call
        self.built = True

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return self._run(inputs, training=training, mask=mask)

    def step(self, x: Any, y: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Train on one batch; return the metrics so far, and the batch's loss."""
        optimizer: Any = self.optimizer
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss: Any = self.compute_loss(x, y, predictions, sample_weight)
            scaled = optimizer.scale_loss(loss)
        weights = self.model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(scaled, [v.value for v in weights]), weights))
        return {**self.compute_metrics(x, y, predictions, sample_weight), "loss": loss}
