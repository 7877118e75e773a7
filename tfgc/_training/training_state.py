"""What a model's plans depend on besides inputs and mode: which weights train, how many slots they have, the loss."""

import contextlib
import weakref
from collections.abc import Hashable
from typing import Any

import keras

from tfgc._core.recently_used import RecentlyUsed
from tfgc._planning import budgets
from tfgc._replay.trained import Trained

_MOST = 8  # sets of weights that train by turns


class TrainingState:
    """Names the state in which a model trains; plans that were made in one are for calls in an equal one."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self.trained = Trained()  # in any of these states
        self._latest: Hashable = None
        self._weights: list[keras.Variable] | None = None
        # Of each optimizer that was seen, by which weights trained.
        self._fixed: weakref.WeakKeyDictionary[Any, RecentlyUsed] = weakref.WeakKeyDictionary()

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
        if trains != self._latest:
            self._latest = trains
            self.trained.note(self._weights or ())
        losses = keras.tree.flatten_with_path(getattr(self._model, "loss", None))
        # As they were compiled: those with names are equal if these are, others if they are the same object.
        named = tuple((path, loss if isinstance(loss, str | None) else _Object(loss)) for path, loss in losses)
        return trains, self._bytes(getattr(self._model, "optimizer", None), trains), named

    def _bytes(self, optimizer: Any, trains: Hashable) -> int:
        """Bytes of weights and slots, the only thing about an optimizer that plans depend on. Zero without one."""
        if not isinstance(optimizer, keras.Optimizer):
            return 0
        known = self._fixed.setdefault(optimizer, RecentlyUsed(_MOST))
        count = known.get(trains)
        if count is None:
            known[trains] = count = budgets.fixed_bytes(self._model)
        return count


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
