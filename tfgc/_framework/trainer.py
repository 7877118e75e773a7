"""A training step with Keras's reading of losses and metrics."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class Trainer(keras.Model):
    """A model run by another `call`, with Keras's reading of `loss` and `metrics`."""

    def __init__(self, model: keras.Model, call: Callable[..., Any]) -> None:
        # It is a separate model, so that compiling it leaves the user's as it is.
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
        gradients = tape.gradient(scaled, [v.value for v in self.model.trainable_variables])
        self.compute_metrics(x, y, predictions, sample_weight)
        optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return {**self.get_metrics_result(), "loss": loss}
