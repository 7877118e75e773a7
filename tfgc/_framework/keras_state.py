"""What Keras keeps for a thread: the calls of layers around, with their scopes, and the global seed."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from tfgc._framework import layer_values, versions
from tfgc._framework.internals import CallContext, global_state
from tfgc._framework.layer_settings import Settings


@functools.cache
def _sources() -> str:
    """Those of the modules of Keras that keep something by name."""
    modules = (m for name, m in sys.modules.items() if name.startswith("keras.") and "global_state" in vars(m))
    found = ""
    for module in modules:
        with contextlib.suppress(OSError):  # installed without sources
            found += inspect.getsource(module)
    return found


def kept_by_name(name: str) -> str:
    """A name under which Keras keeps something of the thread: for others it gives None, and no error."""
    if _sources() and f'"{name}"' not in _sources():
        raise versions.unsupported(f"Keras keeps no {name!r}")
    return name


_CALL_CONTEXT, _AUTOCAST = kept_by_name("current_call_ctx"), kept_by_name("autocast_scope")
_STATELESS, _SYMBOLIC = kept_by_name("stateless_scope"), kept_by_name("symbolic_scope")
_GLOBAL_SEED = kept_by_name("global_seed_generator")
# Of the calls that surround a trace in a thread of its own, which are none of that. Variables to be initialized are in
# a list of each thread: those in a list that two threads share would be initialized twice.
_AROUND = frozenset(
    [_CALL_CONTEXT, _AUTOCAST, _STATELESS, _SYMBOLIC]
    + list(map(kept_by_name, ("uninitialized_variables", "name_scope_stack", "remat_scope_stack")))
)


def of_thread() -> dict[str, Any]:
    """What Keras keeps for this thread by name, such as policies and the global seed, but for the calls around."""
    return {name: value for name, value in vars(global_state.GLOBAL_STATE_TRACKER).items() if name not in _AROUND}


def add_to_thread(values: dict[str, Any]) -> None:
    """Let Keras keep for this thread what it has nothing for yet; `keras.utils.set_random_seed` leaves a seed None."""
    for name, value in values.items():
        if _kept(name) is None:
            global_state.set_global_attribute(name, value)


def _kept(name: str) -> Any:
    return global_state.get_global_attribute(name)


def call_context() -> dict[str, Any] | None:
    """What Keras's call context holds now, its entry layer apart; None outside of any call."""
    context = _kept(_CALL_CONTEXT)
    return None if context is None else {k: v for k, v in vars(context).items() if k != "entry_layer"}


def set_call_context(values: dict[str, Any] | None) -> None:
    """Let Keras's call context hold `values`: an explicit `training=` stays there for the calls that follow."""
    context = _kept(_CALL_CONTEXT)
    if context is not None and values is not None:
        entry = context.entry_layer
        vars(context).clear()
        vars(context).update(values, entry_layer=entry)


def stateless_scope_here() -> Any:
    """The innermost `keras.StatelessScope` of this thread; None if there is none."""
    return _kept(_STATELESS)


def in_symbolic_scope() -> bool:
    """Whether Keras calls a model on symbolic tensors, only to look at shapes or to build it."""
    return _kept(_SYMBOLIC) is not None


def autocast_scope() -> Any:
    """The scope in which Keras casts the variables that a layer reads; None if there is none."""
    return _kept(_AUTOCAST)


def enter_call(values: dict[str, Any], autocast: Any) -> None:
    """Let this thread stand in a call of Keras: what its context holds, its entry layer apart, and its autocast scope.

    No layer takes itself for the outermost one then, and clears losses.
    """
    context = CallContext(entry_layer=None)
    vars(context).update(values)
    global_state.set_global_attribute(_CALL_CONTEXT, context)
    global_state.set_global_attribute(_AUTOCAST, autocast)


def global_seed() -> Any:
    """The generator that Keras draws from without a seed of its own; None before its first use."""
    return _kept(_GLOBAL_SEED)


def set_global_seed(generator: Any) -> None:
    """Make Keras draw from this generator, a new one if None."""
    global_state.set_global_attribute(_GLOBAL_SEED, generator)


class Surroundings:
    """Keras's call context, its autocast scope and the settings of layers now, which have the same `key` if equal.

    `settings` are None where the layers inside are not known.
    """

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings
        self._values = {k: v for k, v in (call_context() or {}).items() if v is not None}
        self._autocast = scope = autocast_scope()
        flags = tuple(sorted((k, v if isinstance(v, bool) else id(v)) for k, v in self._values.items()))
        self.key = (flags, scope and (scope.dtype,)), () if settings is None else settings()

    def held(self, tensors: Iterable[Any]) -> Callable[[], bool] | None:
        """What says whether the layers hold these tensors still; None where they do not now."""
        return layer_values.holders(self._settings or (), tensors)

    def enter(self) -> None:
        """Let this thread, which traces the function, stand where it is called."""
        enter_call(self._values, self._autocast)
