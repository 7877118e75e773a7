"""What a model's plans depend on besides inputs and mode: which weights train, the optimizer, losses and metrics."""

import contextlib
import weakref
from collections.abc import Hashable
from typing import Any

import keras

from tfgc._core.recently_used import RecentlyUsed
from tfgc._framework import keras_models
from tfgc._planning import budgets

_MOST = 8  # sets of weights that train by turns


class TrainingState:
    """Names the state in which a model trains; plans that were made in one are for calls in an equal one."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._weights: list[keras.Variable] | None = None
        # Of each optimizer that was seen, by which weights trained.
        self._updates: weakref.WeakKeyDictionary[Any, RecentlyUsed] = weakref.WeakKeyDictionary()

    def look(self) -> None:
        """Find the weights that the model has by now."""
        self._weights = self._model.weights

    @property
    def now(self) -> Hashable:
        """Equal in equal states; None if the model has no weights yet."""
        if self._weights is None:
            if not self._model.built:
                return None
            self.look()
        trains = tuple([weight.trainable for weight in self._weights or ()])
        compiled = getattr(self._model, "loss", None), keras_models.compiled_metrics(self._model)
        # As they were compiled: those with names are equal if these are, others if they are the same object.
        leaves = keras.tree.flatten_with_path(compiled)
        named = tuple([(path, leaf if isinstance(leaf, str | None) else _Object(leaf)) for path, leaf in leaves])
        return trains, self._of_optimizer(getattr(self._model, "optimizer", None), trains), named

    def _of_optimizer(self, optimizer: Any, trains: Hashable) -> Hashable:
        """Bytes of weights and slots, and the kind of update. None without an optimizer."""
        if not isinstance(optimizer, keras.Optimizer):
            return None
        known = self._updates.setdefault(optimizer, RecentlyUsed(_MOST))
        found = known.get(trains)
        if found is None:
            known[trains] = found = budgets.fixed_bytes(self._model), type(optimizer)
        return found


class _Object:
    """Stands for an object as a key, by identity, and does not keep it alive."""

    def __init__(self, thing: Any) -> None:
        self.number, self.thing = id(thing), lambda: thing
        with contextlib.suppress(TypeError):  # Some classes allow no references.
            self.thing = weakref.ref(thing)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Object) or self.number != other.number:
            return False
        thing = self.thing()
        return thing is not None and thing is other.thing()

    def __hash__(self) -> int:
        return self.number
