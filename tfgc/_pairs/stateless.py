"""Calls in a `keras.StatelessScope`, where values of variables are tensors: they come in and go out as others do."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class StatelessCall:
    """A function called in a scope, as one of the values in that scope, too; it returns those that it writes."""

    def __init__(self, fn: Callable, scope: keras.StatelessScope) -> None:
        self._fn, self._scope = fn, scope
        self.given = {i: value for i, value in scope.state_mapping.items() if tf.is_tensor(value)}
        self._written: list[int] = []

    def __call__(self, values: dict[int, tf.Tensor], args: tuple, kwargs: dict[str, Any]) -> tuple[Any, list]:
        outer = self._scope
        scope = keras.StatelessScope(
            collect_losses=outer.collect_losses, initialize_variables=outer.initialize_variables
        )
        scope.state_mapping |= outer.state_mapping | values
        with scope:
            results = self._fn(*args, **kwargs)
        written = {i: value for i, value in scope.state_mapping.items() if value is not values.get(i)}
        self._written = [*written]
        return results, [*written.values()]

    def finish(self, results: Any, written: list[tf.Tensor]) -> Any:
        """Let the scope know what was written, and return the results."""
        self._scope.state_mapping.update(zip(self._written, written))
        return results
