"""A call of a node on noise, whole and in slices: both must give the same results and gradients.

Gradients are those of a sum of squares: with respect to what the call reads a row for each sample, and with respect to
weights a sum over the samples, which slices add up. Variables hold noise meanwhile: a weight of zero would hide what is
behind it.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.graph import Node, Ref
from tfgc._costs import sample_noise
from tfgc._costs.sample_noise import SAMPLES
from tfgc._framework import keras_models, tensor_attributes
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._pure import drawn_rows
from tfgc._tracing.keras_graph import Program

_ROUNDING = {"float64": 1e-14, "float32": 4e-6, "float16": 1 / 32, "bfloat16": 1 / 8}
_ROUNDING_OF_SUMS = {"float64": 1e-12, "float32": 1e-4, "float16": 1 / 16, "bfloat16": 1 / 4}
_HALF = SAMPLES // 2


class _Made(NamedTuple):
    """What a run made: outputs, gradients of what it read, and of its weights."""

    outputs: list[tf.Tensor]
    of_read: list[tf.Tensor]
    of_weights: list[tf.Tensor]

    def has_rows(self) -> bool:
        return all(t.shape.rank != 0 and t.shape[0] == SAMPLES for t in self.outputs)


@dataclasses.dataclass(frozen=True)
class NoiseRuns:
    """Runs of one node of a program."""

    program: Program
    node: Node
    given: list[Ref]  # that it reads; an optional tensor that is None is left out
    masked: list[Ref]  # those that carry masks
    read: list[Any]  # tensors like those given, and then like their masks

    def compared(self, kinds: Iterable[sample_noise.Kind]) -> str | None:
        """Why runs on slices of noise give something else than those on whole batches; None if they give the same."""
        random = np.random.default_rng(0)
        for kind in kinds:
            try:
                reason = self._compared_on(random, kind)
            except OUT_OF_MEMORY:
                raise
            except Exception:  # The layer is the user's code, which may take no value beside those it compares with.
                if kind.value is None:
                    raise
                continue
            if reason is not None:
                return reason
        return None

    def _compared_on(self, random: np.random.Generator, kind: sample_noise.Kind) -> str | None:
        given = [_drawn(random, t, kind) for t in self.read]
        weights = getattr(self.program.call_of(self.node.name)[0], "trainable_variables", ())
        values = [(v, sample_noise.weight(random, v.value)) for v in weights]
        whole = self._run(given, values)
        if not whole.has_rows():
            return "does not give one result for each sample of a batch"
        with drawn_rows.rows_from(0):
            one = self._run([t[:_HALF] for t in given], values)
        with drawn_rows.rows_from(_HALF):
            two = self._run([t[_HALF:] for t in given], values)
        if not _equal(whole.outputs, [tf.concat(pair, 0) for pair in zip(one.outputs, two.outputs)]):
            return "mixes the samples of a batch"
        if not _equal(whole.of_read, [tf.concat(pair, 0) for pair in zip(one.of_read, two.of_read)]):
            return "mixes the samples of a batch in its gradient"
        if not _equal_sums(whole.of_weights, zip(one.of_weights, two.of_weights), self._computed_in()):
            return "has a gradient of a weight that is not a sum over the samples"
        return None

    def _computed_in(self) -> set[str]:
        """The dtypes that its layers compute in."""
        operation = self.program.call_of(self.node.name)[0]
        layers = keras_models.layers_inside(operation) if isinstance(operation, keras.Layer) else []
        return {layer.compute_dtype for layer in layers}

    def _run(self, given: Sequence[tf.Tensor], values: Sequence[tuple]) -> _Made:
        table: dict[Ref, Any] = dict.fromkeys(self.node.inputs)  # None: an optional one
        table.update(zip(self.given, given))
        for ref, mask in zip(self.masked, given[len(self.given) :]):
            tensor_attributes.set_mask(table[ref], mask)
        sources = [x for x in given if x.dtype.is_floating]
        weights = [value for _, value in values if value.dtype.is_floating]
        with tf.GradientTape() as tape, keras.StatelessScope(values):
            tape.watch([*sources, *weights])
            self.program.run([self.node.name], table, training=True)
            made = [value for ref, value in table.items() if ref not in self.node.inputs]
            squares = [tf.reduce_sum(t**2 * _factors(t)) for t in made if t.dtype.is_floating]
        zero = tf.UnconnectedGradients.ZERO
        try:
            found: Any = tape.gradient(squares, [*sources, *weights], unconnected_gradients=zero)
        except LookupError:  # An operation without a gradient, which training does not ask for.
            found = []
        found = list(map(tf.convert_to_tensor, found))
        return _Made(made, found[: len(sources)], found[len(sources) :])


def _factors(tensor: tf.Tensor) -> tf.Tensor:
    """Numbers from one to two for the places of a sample: the sum of all squares is the same for rows of length one."""
    shape: Any = tensor.shape[1:]
    return tf.cast(tf.reshape(tf.linspace(1.0, 2.0, shape.num_elements()), shape), tensor.dtype)


def _equal(a: Sequence[tf.Tensor], b: Sequence[tf.Tensor]) -> bool:
    """Whether tensors are equal but for the order in which sums are taken."""

    def close(x: tf.Tensor, y: tf.Tensor) -> bool:
        if x.shape != y.shape or not x.dtype.is_floating:
            return x.shape == y.shape and bool(tf.reduce_all(x == y))
        error = _ROUNDING[x.dtype.name]
        one, other = (np.asarray(tf.cast(t, "float64")) for t in (x, y))
        return np.allclose(one, other, rtol=error, atol=error * _largest(x), equal_nan=True)

    return len(a) == len(b) and all(map(close, a, b))


def _equal_sums(whole: Sequence[tf.Tensor], parts: Iterable[Sequence[tf.Tensor]], computed_in: Collection[str]) -> bool:
    """Whether gradients of weights are the sums of those of the parts of a batch, but for rounding.

    A gradient that is zero, as that of the bias of attention's keys, is rounding alone: a rest of terms that are as
    large as other gradients. Rounding is that of the coarsest dtype of the gradients and of those that they were
    `computed_in`.
    """
    dtypes = ({t.dtype.name for t in whole} | {*computed_in}) & {*_ROUNDING}
    largest = max((_largest(t) for t in whole), default=0.0)
    least = largest * max((_ROUNDING[dtype] for dtype in dtypes), default=0.0)
    share = max((_ROUNDING_OF_SUMS[dtype] for dtype in dtypes), default=0.0)
    return all(_largest(t - tf.add_n(list(p))) <= least + share * _largest(t) for t, p in zip(whole, parts))


def _largest(tensor: tf.Tensor) -> float:
    """The largest number of a tensor that is finite, without its sign."""
    sizes = np.abs(tensor)
    return float(sizes[np.isfinite(sizes)].max(initial=0))


def _drawn(random: np.random.Generator, like: Any, kind: sample_noise.Kind) -> tf.Tensor:
    return sample_noise.words(random, like) if like.dtype == tf.string else sample_noise.draw(random, like, kind)
