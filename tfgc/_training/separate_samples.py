"""Whether a training step may run on slices of its batch: no layer mixes samples, and the loss is a mean over them."""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._costs import independence, sample_noise
from tfgc._costs.noise_runs import equal
from tfgc._costs.sample_noise import SAMPLES, Kind
from tfgc._error_texts import one_line
from tfgc._errors import OptionError, UnsupportedModelError
from tfgc._framework import graph_building, layer_settings
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._pure import inner_functions
from tfgc._training.segment_runner import Runner

_MOST_CHECKED = 8  # layers may be frozen by turns
_OFTEN_IGNORED = (-1.0, 0.0, -100.0, 255.0)  # labels


class SeparateSamples:
    """Checks a model and its loss at the first batch of a training step, and at the first one after a change."""

    def __init__(self, runner: Runner, loss: Any, slices: int) -> None:
        self._runner, self._slices = runner, slices
        self._settings = layer_settings.Settings([runner.model])
        # What was given, and settings of the model, that it was checked with.
        self._checked: RecentlyUsed[tuple, bool] = RecentlyUsed(_MOST_CHECKED)
        self._loss: Any = keras.Model(name="loss")
        self._loss.output_names = getattr(runner.model, "output_names", None)
        self._loss.compile(loss=loss)
        self._loss.built = True

    def checked(self, *batch: Any) -> tuple:
        """The batch as tensors; raises where a step on slices would not be that of the whole batch."""
        x, y, sample_weight = made = tf.nest.map_structure(_tensor, batch, expand_composites=False)
        _check_arrays(made)
        if not self._checked:
            samples = next(tensor.shape[0] for tensor in tf.nest.flatten(x) if tensor is not None)
            if samples is not None and samples < self._slices:
                raise OptionError(
                    f"micro_batches={self._slices}, but the batch has {samples} samples; give at most as many"
                )
        given = tuple(tensor is not None for tensor in tf.nest.flatten(made))
        if (given, self._settings()) not in self._checked:
            with self._settings.watched():
                self._check(x, y, sample_weight)
            self._checked[given, self._settings()] = True
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
        if self._loss.loss is None:  # Those that layers add were looked at with them.
            return None
        random, usual = np.random.default_rng(0), Kind()

        def kinds() -> Iterator[tuple[Kind, Kind]]:
            yield usual, usual  # First: it makes the variables of the loss.
            special = [Kind(value=value) for value in self._special_values(like)]
            yield from ((usual, kind) for kind in special)
            yield from ((kind, usual) for kind in special)

        with graph_building.eagerly_recorded():
            for of_predictions, of_labels in kinds():
                try:
                    reason = self._compared(random, like, of_predictions, of_labels)
                except OUT_OF_MEMORY:
                    raise
                except Exception as error:  # The loss is the user's code, and may refuse a special value.
                    if of_predictions is of_labels:
                        why = "to see whether it is a mean over samples"
                        return f"cannot be computed for noise, {why} ({one_line(error)})"
                    continue
                if reason is not None:
                    return reason
        return None

    def _special_values(self, like: Any) -> Sequence[float]:
        """What the operations of the loss treat apart; what often is, if Python code chooses by values of tensors."""
        try:
            with graph_building.scratch_graph("loss").as_default() as graph, inner_functions.inlined():
                self._loss_of(*(_mapped(sample_noise.placeholder, each) for each in like))
                return sample_noise.special_values(graph.get_operations())
        except OUT_OF_MEMORY:
            raise
        except Exception:  # The loss is the user's code, which runs op by op.
            return _OFTEN_IGNORED

    def _compared(self, random: np.random.Generator, like: Any, of_predictions: Kind, of_labels: Kind) -> str | None:
        """Why the loss of a batch of noise is not the mean of those of its halves, or its gradient not theirs."""
        kinds = of_predictions, of_labels, Kind()
        noise = [
            _mapped(functools.partial(sample_noise.draw, random, kind=kind, low=0.1), each)
            for kind, each in zip(kinds, like)
        ]
        half = SAMPLES // 2
        (whole, gradients), (one, of_one), (two, of_two) = (
            self._differentiated(*(_mapped(operator.itemgetter(part), each) for each in noise))
            for part in (slice(None), slice(half), slice(half, None))
        )
        if whole.shape.rank != 0 or not equal([whole], [(one + two) / 2]):
            return "is not a mean over the samples of a batch"
        if not equal(gradients, [tf.concat(pair, 0) / 2 for pair in zip(of_one, of_two)]):
            return "has a gradient that is not a mean over the samples of a batch"
        return None

    def _differentiated(self, predictions: Any, y: Any, weight: Any) -> tuple[Any, list[tf.Tensor]]:
        """The loss, and its gradients with respect to predictions."""
        sources = [t for t in tf.nest.flatten(predictions) if t is not None and t.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            loss = self._loss_of(predictions, y, weight)
        found = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss, list(map(tf.convert_to_tensor, found))

    def _loss_of(self, predictions: Any, y: Any, weight: Any) -> Any:
        return self._loss.compute_loss(None, y, predictions, weight)


def _mapped(function: Callable[[Any], Any], arrays: Any) -> Any:
    return tf.nest.map_structure(lambda t: None if t is None else function(t), arrays)


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
