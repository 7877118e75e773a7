"""A training step with Keras's reading of losses and metrics."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import tensor_attributes
from tfgc._training import micro_batches


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

    def step(self, x: Any, y: Any, sample_weight: Any = None, slices: int = 1) -> dict[str, Any]:
        """Train on one batch, in so many slices; return the metrics so far, and the batch's loss."""
        optimizer: Any = self.optimizer
        weights = self.model.trainable_variables

        def gradients(batch: tuple, share: tf.Tensor | None = None) -> micro_batches.Sums:
            """The loss of a slice and its gradients, for its share of the batch."""
            x, y, sample_weight = batch
            with tf.GradientTape() as tape:
                predictions = self(x, training=True)
                loss: Any = self.compute_loss(x, y, predictions, sample_weight)
                loss = loss if share is None else loss * tf.cast(share, loss.dtype)
                scaled = optimizer.scale_loss(loss)
            if share is not None:
                self._refuse_masks(predictions)
            found = tape.gradient(scaled, [v.value for v in weights])
            self.compute_metrics(x, y, predictions, sample_weight)
            return loss, found

        batch = (x, y, sample_weight)
        loss, found = gradients(batch) if slices == 1 else micro_batches.summed(batch, slices, gradients)
        optimizer.apply_gradients(zip(found, weights))
        return {**self.get_metrics_result(), "loss": loss}

    def _refuse_masks(self, predictions: Any) -> None:
        if any(tensor_attributes.mask_of(t) is not None for t in tf.nest.flatten(predictions)):
            raise UnsupportedModelError(
                f"micro_batches: an output of {self.model.name!r} has a mask, so that its loss is a mean over what the "
                "mask leaves of the whole batch, and not over samples. Leave micro_batches out"
            )
