"""A call of a node on noise, whole and in slices: both must give the same results, losses and gradients.

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
from tfgc._pure import drawn_rows, random_draws
from tfgc._tracing.keras_graph import Program

_ROUNDING = {"float64": 1e-14, "float32": 4e-6, "float16": 1 / 32, "bfloat16": 1 / 8}
_ROUNDING_OF_SUMS = {"float64": 1e-12, "float32": 1e-4, "float16": 1 / 16, "bfloat16": 1 / 4}
_HALF = SAMPLES // 2


class _Made(NamedTuple):
    """What a run made: outputs, added losses, gradients of what it read, and of its weights."""

    outputs: list[tf.Tensor]
    losses: list[tf.Tensor]
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

    def compared(self, kinds: Iterable[sample_noise.Kind], as_random: int | None) -> str | None:
        """Why runs on slices of noise give something else than those on whole batches; None if they give the same.

        `as_random` is how many times a run draws random numbers, if slices may draw others than the rows of those; None
        if they draw those rows, or nothing is drawn.
        """
        random = np.random.default_rng(0)
        for kind in kinds:
            try:
                reason = self._compared_on(random, kind, as_random)
            except OUT_OF_MEMORY:
                raise
            except Exception:  # The layer is the user's code, which may take no value beside those it compares with.
                if kind.value is None:
                    raise
                continue
            if reason is not None:
                return reason
        return None

    def _compared_on(self, random: np.random.Generator, kind: sample_noise.Kind, as_random: int | None) -> str | None:
        first, other = ([_drawn(random, t, kind) for t in self.read] for _ in range(2))
        weights = getattr(self.program.call_of(self.node.name)[0], "trainable_variables", ())
        values = [(v, sample_noise.weight(random, v.value)) for v in weights]
        if as_random is not None:
            return self._compared_as_random(first, other, values, as_random)
        whole = self._run(first, values)
        if not whole.has_rows():
            return "does not give one result for each sample of a batch"
        with drawn_rows.rows_from(0):
            one = self._run([t[:_HALF] for t in first], values)
        with drawn_rows.rows_from(_HALF):
            two = self._run([t[_HALF:] for t in first], values)
        if not equal(whole.outputs, [tf.concat(pair, 0) for pair in zip(one.outputs, two.outputs)]):
            return "mixes the samples of a batch"
        if not equal(whole.losses, [(a + b) / 2 for a, b in zip(one.losses, two.losses)]):
            return "adds a loss that is not a mean over the samples"
        if not equal(whole.of_read, [tf.concat(pair, 0) for pair in zip(one.of_read, two.of_read)]):
            return "mixes the samples of a batch in its gradient"
        if not _equal_sums(whole.of_weights, zip(one.of_weights, two.of_weights), self._computed_in()):
            return "has a gradient of a weight that is not a sum over the samples"
        return None

    def _compared_as_random(
        self, first: Sequence[tf.Tensor], other: Sequence[tf.Tensor], values: Sequence[tuple], draws: int
    ) -> str | None:
        """The same for slices that draw other random numbers: the first half, beside other samples, and alone."""
        drawn, drawn_alone = [], []
        with random_draws.noted(drawn, seeded=True):
            whole = self._run(first, values)
        if not whole.has_rows():
            return "does not give one result for each sample of a batch"
        if whole.losses:
            return "draws random numbers and adds a loss, which may not be a mean over the samples"
        mixed = self._run([tf.concat([a[:_HALF], b[_HALF:]], 0) for a, b in zip(first, other)], values)
        with random_draws.noted(drawn_alone, seeded=True):
            alone = self._run([t[:_HALF] for t in first], values)
        # Draws in functions are not seen, and for a smaller batch some are others.
        alike = len(drawn) == draws and _begin_alike(drawn, drawn_alone)
        return _first_rows_differ(whole, mixed) or (_first_rows_differ(whole, alone) if alike else None)

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
        with tf.GradientTape() as tape, keras.StatelessScope(values, collect_losses=True) as scope:
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
        losses = [tf.reduce_sum(loss) for loss in scope.losses]
        return _Made(made, losses, found[: len(sources)], found[len(sources) :])


def _first_rows_differ(one: _Made, other: _Made) -> str | None:
    """What is not the same of two runs on the same first half of a batch, and with the same draws for it."""
    if not equal([t[:_HALF] for t in one.outputs], [t[:_HALF] for t in other.outputs]):
        return "mixes the samples of a batch"
    same = equal([t[:_HALF] for t in one.of_read], [t[:_HALF] for t in other.of_read])
    return None if same else "mixes the samples of a batch in its gradient"


def _begin_alike(drawn: Sequence[tf.Tensor], alone: Sequence[tf.Tensor]) -> bool:
    """Whether what was drawn for a slice alone is what was drawn for the whole batch, or its first rows."""
    same = (np.array_equal(a[: b.shape[0]] if a.shape.rank and b.shape.rank else a, b) for a, b in zip(drawn, alone))
    return len(drawn) == len(alone) and all(same)


def _factors(tensor: tf.Tensor) -> tf.Tensor:
    """Numbers from one to two for the places of a sample: the sum of all squares is the same for rows of length one."""
    shape: Any = tensor.shape[1:]
    return tf.cast(tf.reshape(tf.linspace(1.0, 2.0, shape.num_elements()), shape), tensor.dtype)


def equal(a: Sequence[tf.Tensor], b: Sequence[tf.Tensor]) -> bool:
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
