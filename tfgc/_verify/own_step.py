"""The `train_step` that a model's class defines, with updates that rounding cannot change much.

What a step gives to its optimizers is compared. The update itself is not tfgc's, and one as Adam makes would spoil the
comparison: it divides by the size of a gradient, so that one which is zero but for rounding moves a weight as far as
any other. In its place all weights of an optimizer move along their gradients, together by one to two per cent.
"""

import math
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import isolated_traces, private_api
from tfgc._verify.steps import Data, Step, traced, users_code

_SHARE = 0.01


class OwnStep(Step):
    """The training step of a compiled model that defines it."""

    loss = "that of the model's own train_step"

    def __init__(self, model: keras.Model, data: Data) -> None:
        super().__init__(model, data)
        self._names: dict[int, str] = {}
        with users_code(
            f"the train_step of {model.name!r} cannot be traced on this batch",
            "Give the batch as fit does, x or (x, y); or give loss=, to verify calls of the model in place of its "
            "train_step",
        ):
            self.draws, self.states = traced(model, self.once, *data)  # builds what is not
        self._names = {id(v): name for name, v in self.states.items()}

    def kind(self, variable: Any) -> str:
        return "weight" if variable.trainable else super().kind(variable)

    def once(self, x: Any, y: Any, weight: Any) -> dict[tuple[str, str], Any]:
        """Run the model's step; return the gradients that its optimizers get, and what it returns."""
        found: dict[tuple[str, str], Any] = {}
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

        def update(optimizer: keras.Optimizer, grads: Iterable[Any], trainable_variables: Any = None) -> None:
            pairs = list(zip(grads, private_api.updated_by(optimizer, trainable_variables)))
            for gradient, variable in pairs:
                if graph is None or gradient is None or gradient.graph is graph:  # else it is made in a branch or loop
                    found["gradient", self._name(variable, found)] = gradient
            _move([(gradient, variable) for gradient, variable in pairs if gradient is not None])

        with isolated_traces.updates_by(update):
            made = self.model.train_step(keras.utils.pack_x_y_sample_weight(x, y, weight))
        for name, value in (made if isinstance(made, dict) else {"result": made}).items():
            parts = tf.nest.flatten(value)
            found |= {("metric", name if len(parts) == 1 else f"{name}[{i}]"): part for i, part in enumerate(parts)}
        return found

    def _name(self, variable: Any, found: dict[tuple[str, str], Any]) -> str:
        """The name of a weight, numbered if it has been updated before."""
        count = 1
        unique = name = self._names.get(id(variable), str(variable.name))
        while ("gradient", unique) in found:
            count += 1
            unique = f"{name}, update {count}"
        return unique


def _move(pairs: list[tuple[Any, Any]]) -> None:
    """Move weights along their gradients, by a share of the norm of them all; not where gradients overflow."""
    gradients = [tf.cast(tf.convert_to_tensor(gradient), tf.float64) for gradient, _ in pairs]
    weights = [tf.cast(variable, tf.float64) for _, variable in pairs]
    # The power of two below the norm: with the norm itself gradients that are all too large by one factor move alike.
    norm = 2.0 ** tf.math.floor(tf.math.log(tf.linalg.global_norm(gradients)) / math.log(2.0))
    length = _SHARE * tf.math.divide_no_nan(tf.linalg.global_norm(weights), norm)
    for (_, variable), weight, gradient in zip(pairs, weights, gradients):
        moved = tf.where(tf.math.is_finite(length * gradient), weight - length * gradient, weight)
        variable.assign(tf.cast(moved, variable.dtype))
