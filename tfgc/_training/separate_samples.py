"""Whether a training step may run on slices of its batch: no layer mixes samples, and the loss is a mean over them."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._costs import independence
from tfgc._errors import OptionError, UnsupportedModelError, one_line
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._training.segment_runner import Runner


class SeparateSamples:
    """Checks a model and its loss at the first batch of a training step.

    Args:
        runner: What runs the model.
        loss: What the step was given.
        slices: How many.
    """

    def __init__(self, runner: Runner, loss: Any, slices: int) -> None:
        self._runner, self._slices, self._checked = runner, slices, False
        self._loss: Any = keras.Model(name="loss")
        self._loss.output_names = getattr(runner.model, "output_names", None)
        self._loss.compile(loss=loss)
        self._loss.built = True

    def checked(self, *batch: Any) -> tuple:
        """The batch as tensors.

        Raises:
            OptionError: If an array has no samples in front, or not as many as the others, or if the first batch has
                fewer samples than there are slices.
            UnsupportedModelError: If the step on slices would not be that of the whole batch.
        """
        x, y, sample_weight = made = tf.nest.map_structure(_tensor, batch, expand_composites=False)
        _check_arrays(made)
        if not self._checked:
            samples = tf.nest.flatten(x)[0].shape[0]
            if samples is not None and samples < self._slices:
                raise OptionError(
                    f"micro_batches={self._slices}, but the batch has {samples} samples; give at most as many"
                )
            self._check(x, y, sample_weight)
            self._checked = True
        return made

    def _check(self, x: Any, y: Any, sample_weight: Any) -> None:
        program = self._runner.program
        nodes, made = independence.read(program, program.feed(x))
        for name, obstacle in nodes.items():
            if obstacle is not None:
                raise UnsupportedModelError(
                    f"micro_batches: layer {name!r} of {self._runner.model.name!r} {obstacle}, so slices of a "
                    "batch would not train as the whole batch does. Leave micro_batches out and use a plan instead"
                )
        reason = self._loss_obstacle(program.collect(made), y, sample_weight)
        if reason is not None:
            raise UnsupportedModelError(
                f"micro_batches: the loss {reason}, so slices of a batch would not train as the whole batch does. Give "
                "a loss that is a mean over samples, or leave micro_batches out"
            )

    def _loss_obstacle(self, *like: Any) -> str | None:
        """Why the loss of a batch is not the mean of those of its slices, as noise shows; None if it is."""
        random, half = np.random.default_rng(0), independence.SAMPLES // 2

        def noise(like: Any) -> Any:
            shape = (independence.SAMPLES, *like.shape[1:])
            if like.dtype.is_integer or like.dtype.is_bool:
                return tf.cast(random.integers(0, 2, shape), like.dtype)
            return tf.cast(random.uniform(0.1, 0.9, shape), like.dtype)

        with tf.init_scope():
            arrays = tf.nest.map_structure(lambda t: None if t is None else noise(t), like)

            def loss_of(part: slice) -> Any:
                predictions, y, weight = tf.nest.map_structure(lambda t: None if t is None else t[part], arrays)
                return self._loss.compute_loss(None, y, predictions, weight)

            try:
                whole, *parts = (loss_of(part) for part in (slice(None), slice(half), slice(half, None)))
            except OUT_OF_MEMORY:
                raise
            except Exception as error:  # The loss is the user's code.
                return f"cannot be computed for noise, to see whether it is a mean over samples ({one_line(error)})"
            same = whole.shape.rank == 0 and independence.equal([whole], [(parts[0] + parts[1]) / 2])
        return None if same else "is not a mean over the samples of a batch"


def _tensor(x: Any) -> Any:
    if isinstance(x, tf.RaggedTensor | tf.SparseTensor):
        raise UnsupportedModelError(f"micro_batches: {type(x).__name__} cannot be cut into slices; give dense arrays")
    return None if x is None else tf.convert_to_tensor(x)


def _check_arrays(batch: Any) -> None:
    arrays = [x for x in tf.nest.flatten(batch) if x is not None]
    for x in arrays:
        if not x.shape.rank:
            raise OptionError(f"micro_batches: {x!r} has no samples in front, so it cannot be cut into slices")
    known = {x.shape[0] for x in arrays} - {None}
    if len(known) > 1:
        raise OptionError(f"micro_batches: the arrays of the batch have {sorted(known)} samples; give as many of each")
