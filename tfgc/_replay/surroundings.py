"""What a function sees besides its arguments: where in Keras it is called, and the settings of its layers."""

import contextlib
from collections.abc import Callable, Iterator

from tfgc._framework import private_api
from tfgc._framework.layer_settings import Settings


class Surroundings:
    """Keras's call state and the settings of layers at one moment, entered again by the replay.

    A layer that is shared may be set otherwise for its next call, or frozen, before gradients are asked for.

    Args:
        settings: Those of the layers inside; None where they are not known.

    Attributes:
        key: A hashable value, equal for surroundings that are the same.
    """

    def __init__(self, settings: Settings | None) -> None:
        self._state, self._settings = private_api.CallState(), settings
        self._kept: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
        self.key = self._state.key, () if settings is None else settings()

    def kept(self) -> "Surroundings":
        """These, with the settings of this moment noted, for what runs again in Python."""
        if self._settings is not None:
            self._kept = self._settings.kept()
        return self

    @contextlib.contextmanager
    def reentered(self) -> Iterator[None]:
        """Run a replay as if it still stood where the first run did."""
        with self._kept(), self._state.reentered():
            yield
