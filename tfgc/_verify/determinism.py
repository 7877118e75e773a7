"""Run each layer twice from the same state, to find those that do not repeat themselves."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._framework import private_api
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._framework.replaced import replaced
from tfgc._pure import functional, obstacles, side_effects, tensor_packing


@contextlib.contextmanager
def check_determinism(layers: Mapping[str, keras.Layer]) -> Iterator[tuple[set[str], dict[str, str]]]:
    """Run every call of `layers`, a mapping from names, twice in here.

    Yields:
        A set of the names of layers whose two runs differed, in their results, new
        states or gradients; and a mapping from those that cannot be run twice to the reason.
    """
    unrepeatable: set[str] = set()
    kept: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for name, layer in layers.items():
            stack.enter_context(replaced(layer, "call", _Twice(layer.call, name, unrepeatable, kept)))
        yield unrepeatable, kept


class _Twice:
    """Replaces the `call` of a layer; before each call, runs it twice from the same state and compares.

    Args:
        original: The layer's `call`.
        name: The layer's name.
        unrepeatable: The set that gets the name if the two runs differ.
        kept: The mapping that gets the name, and the reason, if the layer cannot be run twice.
    """

    def __init__(self, original: Callable, name: str, unrepeatable: set[str], kept: dict[str, str]) -> None:
        functools.update_wrapper(self, original)
        self._original, self._name = original, name
        self._unrepeatable, self._kept = unrepeatable, kept

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not private_api.in_stateless_scope():
            self._compare(args, kwargs)
        return self._original(*args, **kwargs)

    def _compare(self, args: tuple, kwargs: dict[str, Any]) -> None:
        packing = tensor_packing.Packing((args, kwargs))
        tensors = packing.take_tensors()
        try:
            effects = side_effects.discover(self._original, packing)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # The plain call that follows raises what is the user's mistake.
            self._kept[self._name] = obstacles.untraceable(error)
            return
        if effects.obstacle is not None:
            self._kept[self._name] = effects.obstacle
        if effects.obstacle is not None or effects.draws:  # Stored draws replace drawing in a traced run alone.
            return
        values = [tf.convert_to_tensor(variable.value) for variable in effects.reads]
        first, second = (_everything_from_one_run(self._original, packing, tensors, effects, values) for _ in range(2))
        if len(first) != len(second) or not all(map(_same, first, second)):
            self._unrepeatable.add(self._name)


def _everything_from_one_run(
    fn: Callable,
    packing: tensor_packing.Packing,
    tensors: Sequence[tf.Tensor],
    effects: side_effects.Effects,
    values: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """The results, losses and states of one run of `fn`, and gradients for upstream gradients of one."""
    with tf.GradientTape() as tape:
        tape.watch([t for t in [*tensors, *values] if t.dtype.is_floating or t.dtype.is_complex])
        run = functional.run(fn, packing, tensors, effects.reads, values)
    targets = [run.tensors[i] for i in run.differentiable]
    gradients = tape.gradient(targets, [*tensors, *values]) if targets else []
    return [*run.tensors, *(tf.convert_to_tensor(g) for g in gradients if g is not None)]


def _same(first: tf.Tensor, second: tf.Tensor) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.dtype in (tf.variant, tf.resource) or np.array_equal(
        first.numpy(), second.numpy(), equal_nan=first.dtype.is_floating
    )
