"""One call of a model, its loss and the gradients; weights are not updated."""

from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import OptionError
from tfgc._framework import keras_names, tensor_attributes
from tfgc._framework.trainer import Trainer
from tfgc._verify.steps import Data, Step, named, traced, users_code

_SQUARES = "the mean square of the outputs and of the logits behind them"


class LossStep(Step):
    """A call of a model and its gradients; the loss is by default the compiled one, or else mean squares."""

    def __init__(self, model: keras.Model, data: Data, loss: Any) -> None:
        super().__init__(model, data)
        self._grader = _grader(model, loss, data[1] is not None)
        self.loss = _SQUARES if self._grader is None else _shown(loss) if loss is not None else "the compiled loss"
        with users_code(
            f"{model.name!r} cannot be called in a graph on this batch",
            "Give the batch as fit does, x or (x, y), and use TensorFlow operations for what depends on the values of "
            "tensors",
        ):
            self.draws, self.states = traced(model, lambda x: model(x, training=True), data[0])
        if self._grader is not None:
            # Metrics are built by their first use.
            before, metrics = self.read(), [(v, v.numpy()) for v in self._grader.metrics_variables]
            outputs = model(data[0], training=True)
            with users_code(
                f"the outputs of {model.name!r} and the targets of this batch do not go with {self.loss}",
                "Give y as fit does, or another loss=",
            ):
                self._graded(*data, outputs)
            self._grader.reset_metrics()
            self.write(before)
            for variable, value in metrics:
                variable.assign(value)
            self.states = named([*self.states.values(), *self._grader.metrics_variables])

    def once(self, x: Any, y: Any, weight: Any) -> dict[tuple[str, str], Any]:
        """Call the model; return the loss, the losses that were added, the gradients and the metrics."""
        with tf.GradientTape() as tape:
            outputs = self.model(x, training=True)
            added = list(self.model.losses)
            loss, metrics = self._graded(x, y, weight, outputs)
        found: dict[tuple[str, str], Any] = {("loss", "loss"): loss}
        found |= {("added loss", str(i)): value for i, value in enumerate(added)}
        found |= {("metric", name): value for name, value in metrics.items()}
        gradients = tape.gradient(loss, list(self.watched.values()))
        return found | {("gradient", name): gradient for name, gradient in zip(self.watched, gradients)}

    def _graded(self, x: Any, y: Any, weight: Any, outputs: Any) -> tuple[tf.Tensor, dict[str, Any]]:
        """The loss and the metrics of a batch."""
        if self._grader is not None:
            loss = self._grader.compute_loss(x, y, outputs, weight)
            return loss, self._grader.compute_metrics(x, y, outputs, weight)
        flat = tf.nest.flatten(outputs)
        attached = [pair for tensor in flat for pair in tensor_attributes.attributes(tensor)]
        behind = [value for name, value in attached if name == tensor_attributes.LOGITS]
        flat = [*flat, *behind]
        dtype = tf.float64 if any(t.dtype == tf.float64 for t in flat) else tf.float32
        flat = [tf.cast(t, dtype) for t in flat]
        added = [tf.reduce_sum(tf.cast(loss, dtype)) for loss in self.model.losses]  # as Keras adds them up
        return tf.add_n([tf.reduce_mean(t**2) for t in flat] + added), {}


def _shown(loss: Any) -> str:
    """A loss without its address in memory, which differs from run to run."""
    if isinstance(loss, dict):
        return "{" + ", ".join(f"{name!r}: {_shown(one)}" for name, one in loss.items()) + "}"
    if isinstance(loss, (list, tuple)):
        return "[" + ", ".join(map(_shown, loss)) + "]"
    if isinstance(loss, str) or loss is None:
        return repr(loss)
    return getattr(loss, "__name__", type(loss).__name__)


def _grader(model: keras.Model, loss: Any, has_targets: bool) -> Any:
    """The model that computes the loss and metrics, as Keras does; None for the mean squares."""
    if loss is not None and not has_targets:
        raise OptionError(f"loss={loss!r} needs targets: give the batch as (x, y)")
    if loss is not None:
        keras_names.check_losses(loss, model)
        trainer = Trainer(model, model)
        trainer.compile(loss=loss)
        return trainer
    return model if has_targets and model.compiled else None
