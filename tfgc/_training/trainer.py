"""A training step with Keras's reading of losses and metrics."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import partial_steps, tensor_attributes
from tfgc._replay import batch_slices
from tfgc._training.early_updates import EarlyUpdates


class Trainer(keras.Model):
    """A model run by another `call`, with Keras's reading of `loss` and `metrics`."""

    def __init__(self, model: keras.Model, call: Callable[..., Any], *, as_ready: bool = False) -> None:
        # It is a separate model, so that compiling it leaves the user's as it is.
        super().__init__(name="train_step", dtype=model.dtype_policy, autocast=False)
        self.model = model
        self.as_ready = as_ready
        self.output_names = getattr(model, "output_names", None)
        self._run = call
        self.built = True

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return self._run(inputs, training=training, mask=mask)

    def step(self, x: Any, y: Any, sample_weight: Any = None, slices: int = 1) -> dict[str, Any]:
        """Train on one batch, in so many slices; return the metrics so far, and the batch's loss."""
        batch = (x, y, sample_weight)
        if self.as_ready:
            loss = self._update_early(*batch)
            return {**self.get_metrics_result(), "loss": loss}
        if slices == 1:
            loss, gradients = self._gradients(*batch)
        else:
            samples = _samples(x)

            def in_slice(part: tuple, _: Any) -> batch_slices.Results:
                loss, gradients = self._gradients(*part, whole=samples)
                return [], [loss, *gradients]

            _, (loss, *gradients) = batch_slices.run(batch, slices, in_slice)
        optimizer: Any = self.optimizer
        optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return {**self.get_metrics_result(), "loss": loss}

    def _gradients(self, x: Any, y: Any, sample_weight: Any, whole: Any = None) -> tuple[tf.Tensor, list[Any]]:
        """The loss and its gradients, scaled as the optimizer wants them.

        With `whole`, the samples of the batch of which this is a slice: its share in the loss of that batch.
        """
        optimizer: Any = self.optimizer
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            if whole is None:
                loss: Any = self.compute_loss(x, y, predictions, sample_weight)
            else:
                if any(tensor_attributes.mask_of(t) is not None for t in tf.nest.flatten(predictions)):
                    raise UnsupportedModelError(
                        f"micro_batches: an output of {self.model.name!r} has a mask, so that its loss is a mean over "
                        "what the mask leaves of the whole batch, and not over samples. Leave micro_batches out"
                    )
                samples = _samples(x)
                with partial_steps.weighted(self, samples):
                    loss = self.compute_loss(x, y, predictions, sample_weight)
                loss *= tf.cast(samples / whole, loss.dtype)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in self.model.trainable_variables])
        self.compute_metrics(x, y, predictions, sample_weight)
        return loss, gradients

    def _update_early(self, x: Any, y: Any, sample_weight: Any) -> tf.Tensor:
        """Update each weight as soon as its gradient is complete; return the loss."""
        optimizer: Any = self.optimizer
        updates = EarlyUpdates(optimizer, self.model.trainable_variables)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            updates.watch(tape)
            predictions = self(x, training=True)
            loss: Any = self.compute_loss(x, y, predictions, sample_weight)
            scaled = optimizer.scale_loss(loss)
        updates.run(tape, scaled)
        self.compute_metrics(x, y, predictions, sample_weight)
        return loss


def _samples(x: Any) -> tf.Tensor:
    return tf.shape(next(tensor for tensor in tf.nest.flatten(x) if tensor is not None))[0]
