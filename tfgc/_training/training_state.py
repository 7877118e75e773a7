"""What a model's plans depend on besides inputs and mode: which weights train, how many slots they have, the loss."""

import weakref
from collections.abc import Hashable
from typing import Any

import keras

from tfgc._planning import budgets


class TrainingState:
    """Names the state in which a model trains; plans that were made in one are for calls in an equal one."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._weights: list[keras.Variable] | None = None
        # Of each optimizer that was seen, by which weights trained.
        self._fixed: weakref.WeakKeyDictionary[Any, dict[Hashable, int]] = weakref.WeakKeyDictionary()

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
        losses = keras.tree.flatten(getattr(self._model, "loss", None))
        return trains, self._bytes(getattr(self._model, "optimizer", None), trains), tuple(map(_name, losses))

    def _bytes(self, optimizer: Any, trains: Hashable) -> int:
        """Bytes of weights and slots: all of an optimizer that plans depend on. Zero without one."""
        if optimizer is None:
            return 0
        known = self._fixed.setdefault(optimizer, {})
        if trains not in known:
            known[trains] = budgets.fixed_bytes(self._model)
        return known[trains]


def _name(loss: Any) -> Hashable:
    """A loss as it was compiled: itself if it is a name, else equal for the same object only."""
    try:
        return loss if isinstance(loss, str) else weakref.ref(loss)
    except TypeError:  # It is None, or of a class that allows no references.
        return type(loss)
