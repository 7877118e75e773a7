"""Run each layer twice from the same state, to find those that do not repeat themselves."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._framework import graph_building, private_api
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._framework.replaced import replaced
from tfgc._pure import functional, obstacles, side_effects, tensor_packing


@contextlib.contextmanager
def check_determinism(layers: Mapping[str, keras.Layer]) -> Iterator[tuple[set[str], dict[str, str]]]:
    """Run every call of `layers` twice in here.

    Gives the names of those whose two runs differed, in results, new states or gradients; and of those that cannot be
    run twice, each with the reason.
    """
    unrepeatable: set[str] = set()
    kept: dict[str, str] = {}

    def twice(original: Callable, name: str) -> Callable:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not private_api.in_stateless_scope():
                obstacle, repeats = _tried(original, args, kwargs)
                if obstacle is not None:
                    kept[name] = obstacle
                if not repeats:
                    unrepeatable.add(name)
            return original(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for name, layer in layers.items():
            stack.enter_context(replaced(layer, "call", twice(layer.call, name)))
        yield unrepeatable, kept


def _tried(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[str | None, bool]:
    """Why a call cannot be run twice, or None; and False if two runs of it from one state differ."""
    packing = tensor_packing.Packing((args, kwargs))
    tensors = packing.take_tensors()
    try:
        effects = side_effects.discover(fn, packing)
    except OUT_OF_MEMORY:
        raise
    except Exception as error:  # The plain call that follows raises what is the user's mistake.
        return obstacles.untraceable(error), True
    if effects.obstacle is not None or effects.draws:  # Stored draws replace drawing in a traced run alone.
        return effects.obstacle, True
    values = [tf.convert_to_tensor(variable.value) for variable in effects.reads]
    n, given = len(tensors), [*tensors, *values]

    def run_once() -> list[tf.Tensor]:
        """The results, losses and states of one run, and gradients for upstream gradients of one."""
        with tf.GradientTape() as tape:
            tape.watch([t for t in given if t.dtype.is_floating or t.dtype.is_complex])
            copies = graph_building.with_own_gradients(given, range(len(given)))
            run = functional.run(fn, packing, copies[:n], effects.reads, copies[n:])
        targets = [run.tensors[i] for i in run.differentiable]
        gradients = tape.gradient(targets, given) if targets else []
        return [*run.tensors, *(tf.convert_to_tensor(g) for g in gradients if g is not None)]

    first, second = run_once(), run_once()
    return None, len(first) == len(second) and all(map(_same, first, second))


def _same(first: tf.Tensor, second: tf.Tensor) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.dtype in (tf.variant, tf.resource) or np.array_equal(
        first.numpy(), second.numpy(), equal_nan=first.dtype.is_floating
    )
