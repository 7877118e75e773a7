"""What a function sees besides its arguments: where in Keras it is called, and the settings of its layers."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tfgc._framework import held_tensors, private_api
from tfgc._framework.internals import AutocastScope, CallContext, get_autocast_scope, global_state
from tfgc._framework.layer_settings import Settings


class Surroundings:
    """Keras's call context, its autocast scope and the settings of layers at one moment, entered again by the replay.

    A layer that is shared may be set otherwise for its next call, or frozen, before gradients are asked for.
    `settings` are None where the layers inside are not known. Surroundings that are the same have the same `key`.
    """

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._kept: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
        self._values = {k: v for k, v in (private_api.call_context() or {}).items() if v is not None}
        scope = get_autocast_scope()
        self._autocast = None if scope is None else (scope.dtype,)
        flags = tuple(sorted((k, v if isinstance(v, bool) else id(v)) for k, v in self._values.items()))
        self.key = (flags, self._autocast), () if settings is None else settings()

    def held(self, tensors: Iterable[Any]) -> Callable[[], bool] | None:
        """What says whether the layers hold these tensors still; None where they do not now."""
        return held_tensors.held(self._settings or (), tensors)

    def kept(self) -> "Surroundings":
        """These, with the settings of this moment noted, for what runs again in Python."""
        if self._settings is not None:
            self._kept = self._settings.kept()
        return self

    @contextlib.contextmanager
    def reentered(self) -> Iterator[None]:
        """Run a replay as if it still stood where the first run did."""
        outer = {name: global_state.get_global_attribute(name) for name in (private_api.CALL_CONTEXT, "autocast_scope")}
        # The context has no entry layer, so that no layer takes itself for the outermost one and clears losses.
        context = CallContext(entry_layer=None)
        vars(context).update(self._values)
        scope = None if self._autocast is None else AutocastScope(self._autocast[0])
        with self._kept():
            global_state.set_global_attribute(private_api.CALL_CONTEXT, context)
            global_state.set_global_attribute("autocast_scope", scope)
            try:
                yield
            finally:
                for name, value in outer.items():
                    global_state.set_global_attribute(name, value)
