"""Put the attributes of layers back to what they were, for as long as a replay runs their Python code again."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

MISSING = object()


class KeptSettings:
    """Attributes of layers at one moment.

    Args:
        values: Of each layer the values by name, `MISSING` for what it did not have.
        left_out: Of each layer the names that stay as they are, since it changes them itself while it runs. More may
            be added until they are put back.
    """

    def __init__(
        self, values: Sequence[tuple[keras.Layer, dict[str, Any]]], left_out: Mapping[keras.Layer, set[str]]
    ) -> None:
        self._values, self._left_out = values, left_out

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """In here the layers have the attributes of that moment, by `vars`, so that Keras tracks nothing of it."""
        before = []
        for layer, values in self._values:
            own, names = layer.__dict__, values.keys() - self._left_out.get(layer, set())
            before.append((own, {name: own.get(name, MISSING) for name in names}))
            _put(own, {name: values[name] for name in names})
        try:
            yield
        finally:
            for own, values in before:
                _put(own, values)


def _put(own: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is MISSING:
            own.pop(name, None)
        else:
            own[name] = value
