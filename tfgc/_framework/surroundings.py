"""What a function sees besides its arguments: where in Keras it is called, and the settings of its layers."""

from collections.abc import Callable, Iterable
from typing import Any

from tfgc._framework import held_tensors, private_api
from tfgc._framework.layer_settings import Settings


class Surroundings:
    """Keras's call context, its autocast scope and the settings of layers now, which have the same `key` if equal.

    `settings` are None where the layers inside are not known.
    """

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._values = {k: v for k, v in (private_api.call_context() or {}).items() if v is not None}
        self._autocast = scope = private_api.autocast_scope()
        flags = tuple(sorted((k, v if isinstance(v, bool) else id(v)) for k, v in self._values.items()))
        self.key = (flags, scope and (scope.dtype,)), () if settings is None else settings()

    def held(self, tensors: Iterable[Any]) -> Callable[[], bool] | None:
        """What says whether the layers hold these tensors still; None where they do not now."""
        return held_tensors.held(self._settings or (), tensors)

    def enter(self) -> None:
        """Let this thread, which traces the function, stand where it is called."""
        private_api.enter_call(self._values, self._autocast)
