"""Calls in a `keras.StatelessScope`, where values of variables are tensors: they come in and go out as others do."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import added_losses, private_api


class StatelessCall:
    """A function called in the scope of this thread, as one of the values in that scope, too."""

    def __init__(self, fn: Callable) -> None:
        self._fn, self._scope = fn, private_api.stateless_scope_here()
        self.given = {i: value for i, value in self._scope.state_mapping.items() if tf.is_tensor(value)}
        self._written: list[int] = []
        self._makers: list[keras.Layer] = []

    def __call__(self, values: dict[int, tf.Tensor], args: tuple, kwargs: dict[str, Any]) -> tuple[Any, list, list]:
        """Its results, the values that it writes, and the losses that layers add."""
        scope = _Scope(collect_losses=self._scope.collect_losses, initialize_variables=self._scope.initialize_variables)
        scope.state_mapping |= self._scope.state_mapping | values
        with scope:
            results = self._fn(*args, **kwargs)
        for layer, loss in zip(scope.makers, scope.losses):
            added_losses.forget_loss(layer, loss)
        written = {i: value for i, value in scope.state_mapping.items() if value is not values.get(i)}
        self._written, self._makers = [*written], scope.makers
        return results, [*written.values()], scope.losses

    def finish(self, results: Any, written: list[tf.Tensor], losses: list[tf.Tensor]) -> Any:
        """Let the scope know what was written and added, and return the results."""
        self._scope.state_mapping.update(zip(self._written, written))
        for layer, loss in zip(self._makers, losses):
            added_losses.remember_loss(layer, loss)
            self._scope.add_loss(loss)
        return results


class _Scope(keras.StatelessScope):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.makers: list[keras.Layer] = []

    def add_loss(self, loss: tf.Tensor) -> None:
        self.makers.append(added_losses.maker_of_loss())
        super().add_loss(loss)
