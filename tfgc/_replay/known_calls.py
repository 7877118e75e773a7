"""What is known of the calls of one function, so that each kind of call is traced once.

Two calls are of one kind if a trace of one serves the other: same structure, flags, dtypes and ranks, same state of
Keras around them, same settings of the layers inside.
"""

import dataclasses
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._framework import concrete_functions, graph_copies, private_api, tensor_attributes
from tfgc._framework.layer_settings import Settings
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._framework.surroundings import Surroundings
from tfgc._pure import obstacles, side_effects, traced_calls
from tfgc._pure.side_effects import Effects
from tfgc._pure.tensor_packing import Packing
from tfgc._replay.copied_traces import CopiedRecomputation, SharedTrace
from tfgc._replay.forward_backward import CompiledRecomputation, Recomputation, TracedReplay
from tfgc._replay.trained import Trained
from tfgc._replay.two_runs import TwoRuns

# How many kinds are known and compiled: a number that changes at every step makes a new kind of call each time.
_MOST_KNOWN, _MOST_COMPILED = 256, 64


@dataclasses.dataclass(frozen=True)
class Function:
    """What a block runs."""

    fn: Callable
    name: str  # what messages call it
    # What the second run calls: the same function whose parts are blocks, to be recomputed in turn; None for `fn`.
    replay_fn: Callable | None = None
    # What else its Python code depends on; when that changes it is traced again. None: it is not known.
    settings: Settings | None = None
    # Whether tensors that are no arguments may differ between calls: a call that reads any is not compiled.
    captures_vary: bool = False
    copied: bool = False  # whether a graph may copy one trace of it for both runs
    selective: bool = False  # whether the replay takes over dear products, where a trace is copied
    holds_tensors: Callable[[], bool] | None = None  # whether a layer holds tensors of a trace that it put aside
    on_host: tuple[int, ...] = ()  # positions of the arguments that wait for the replay in the host's memory
    trained: Trained = dataclasses.field(default_factory=Trained)  # variables, in this block and others of a model
    owner: keras.Layer | None = None  # the layer or model that it belongs to, which holds what graphs need of it


@dataclasses.dataclass(frozen=True)
class Counterpart:
    """Another block that does the same with other variables, whose traces, and known calls, serve here."""

    calls: "KnownCalls"  # of that block
    names: dict[int, Any]  # for each of its variables and layers, by id, the one in its place here
    alike: Callable[[], bool]  # whether both still do the same

    def of(self, things: Any) -> list[Any] | None:
        """The counterparts of variables or layers; None if one of them has none."""
        found = [self.names.get(id(thing)) for thing in things]
        return None if any(thing is None for thing in found) else found


class Call:
    """One call: its arguments, positional ones and those by keyword, and the kind that it is of, which its `key` tells.

    It is `compiled` if it is to run by `tf.function`s where it can.
    """

    def __init__(self, function: Function, args: tuple, kwargs: dict, by_shape: bool, compiled: bool) -> None:
        self.surroundings = Surroundings(function.settings)
        self.compiled = compiled
        self._function, self.arguments = function, (args, kwargs)
        self._tensors: list[tf.Tensor] | None = None
        self._packing: Packing | None = None
        # A compiled recomputation holds the plain variables that it reads, of which each replica has its own.
        replica = private_api.replica() if tf.executing_eagerly() else None
        self._around = (self.surroundings.key, compiled, replica)
        self.set_key(by_shape)

    def set_key(self, by_shape: bool) -> None:
        """Set `key`, with or without the sizes of the tensors."""
        # A call on nothing but eager tensors and flags is looked up without a packing, which would cost more.
        plain = _plain_key(*self.arguments, by_shape) if self.compiled else None
        self.is_hashable = plain is not None or self.packing.is_hashable
        if plain is None:
            plain = self.packing.key, self.packing.shapes if by_shape else None
        self.key = (plain, self._around)

    @property
    def packing(self) -> Packing:
        """The structure of the arguments."""
        if self._packing is None:
            self._packing = Packing(self.arguments)
            self._tensors = self._packing.take_tensors()
        return self._packing

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The tensors of the arguments, in the order of `packing`."""
        return list(self.arguments[0]) if self._tensors is None else self._tensors

    @property
    def on_host(self) -> set[int]:
        """The ids of the tensors that wait for the replay in the host's memory."""
        return {id(self.arguments[0][i]) for i in self._function.on_host}

    def run_plainly(self) -> Any:
        """Run the function as it is."""
        return self._function.fn(*self.arguments[0], **self.arguments[1])


def _plain_key(args: tuple, kwargs: dict, by_shape: bool) -> Hashable | None:
    """A key for calls on nothing but eager tensors and flags; None for all others."""
    if not all(isinstance(x, tf.Tensor) and not tensor_attributes.attributes(x) for x in args):
        return None
    if not all(flag is None or isinstance(flag, bool) for flag in kwargs.values()):
        return None
    shapes = map(concrete_functions.shape_of, args)
    sizes = tuple(shapes) if by_shape else tuple(map(len, shapes))
    return tuple(x.dtype for x in args), sizes, tuple(kwargs.items())


class KnownCalls:
    """What each kind of call of a function touches, or the compiled functions that run it."""

    def __init__(self, function: Function, shared: Counterpart | None = None) -> None:
        self.function = function
        self._shared = shared
        self._known: RecentlyUsed[Hashable, Effects | TwoRuns] = RecentlyUsed(_MOST_KNOWN)
        self._compiled = 0
        # By graph: a call of another graph may see other things around it.
        self._copied: weakref.WeakKeyDictionary[Any, RecentlyUsed] = weakref.WeakKeyDictionary()
        self._by_shape = False

    def call(self, args: tuple, kwargs: dict, compiled: bool) -> Call:
        """A call of the function."""
        return Call(self.function, args, kwargs, self._by_shape, compiled)

    def can_be_compiled(self, call: Call) -> bool:
        """Whether a call of a new kind may be compiled: a trace would freeze what may differ next time."""
        return call.is_hashable and self._compiled < _MOST_COMPILED

    def find(self, call: Call) -> TwoRuns | None:
        """How to run a call of a kind that is known; None if it is not, or in a graph."""
        known = self._known.get(call.key) if tf.executing_eagerly() else None
        return self._uncompiled(call, known) if isinstance(known, Effects) else known

    def look(self, call: Call) -> TwoRuns:
        """Look at what a call touches, remember that for eager calls of its kind, and return how to run it."""
        copied = self._from_copies(call) if self.function.copied and not tf.executing_eagerly() else None
        if copied is not None:
            return copied
        other = self._shared
        shared = _of_counterpart(other.calls._known.get(call.key), other) if other and other.alike() else None
        if isinstance(shared, SharedTrace):
            return self._keep_compiled(call, shared)
        copied = self._trace(call) if shared is None and call.compiled and self.function.copied else None
        if copied is not None and self._can_be_traced(copied.effects):
            return self._keep_compiled(call, CompiledRecomputation(copied))
        try:
            effects = shared or side_effects.discover(self.function.fn, call.packing)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # The plain run that follows raises what is the user's mistake.
            return self._uncompiled(call, Effects((), obstacle=obstacles.untraceable(error)))
        if call.compiled and self._can_be_traced(effects):
            return self._keep_compiled(call, CompiledRecomputation(self._recomputation(call, effects)))
        recomputation = self._uncompiled(call, effects)
        if effects.chooses:
            # The next call chooses again, and may then touch other things.
            return recomputation
        traced = isinstance(recomputation, TracedReplay) and self.can_be_compiled(call)
        # Its first run sees what Python holds by then, so the traced second one must not be older.
        if traced and self.function.settings is not None and not effects.constants and not effects.captured:
            return self._keep_compiled(call, recomputation)
        # What it closes over is looked up again when it matters, instead of being kept alive.
        self._known[call.key] = dataclasses.replace(effects, captured=())
        return recomputation

    def _keep_compiled(self, call: Call, recomputation: TwoRuns) -> TwoRuns:
        self._compiled += 1
        self._known[call.key] = recomputation
        return recomputation

    def look_by_shape(self, call: Call) -> TwoRuns:
        """Look again, and from now on at each size: for another one the function read a variable not seen before."""
        self._by_shape, self._shared = True, None
        call.set_key(by_shape=True)
        return self.look(call)

    def _can_be_traced(self, effects: Effects) -> bool:
        varies = effects.captured or effects.chooses or (effects.constants and self.function.captures_vary)
        return effects.obstacle is None and not varies and not effects.branches

    def _recomputation(self, call: Call, effects: Effects) -> Any:
        function, around = self.function, call.surroundings.kept()
        return Recomputation(function.fn, function.replay_fn, call.packing, effects, around, function.name)

    def _uncompiled(self, call: Call, effects: Effects) -> TwoRuns:
        recomputation = self._recomputation(call, effects)
        return TracedReplay(recomputation) if effects.draws and tf.executing_eagerly() else recomputation

    def _from_copies(self, call: Call) -> CopiedRecomputation | SharedTrace | None:
        """How to run a call in a graph by copies of one trace, maybe that of the counterpart; None if it cannot be."""
        # Inside a replay, and for the replicas of a strategy, operations get what a copy does not.
        if not call.packing.is_hashable or private_api.in_stateless_scope() or tf.distribute.has_strategy():
            return None
        key = (call.key, call.packing.shapes, graph_copies.device())
        shared = self._shared
        if shared is not None and key in shared.calls._copies and shared.alike():
            return _of_counterpart(shared.calls._copies.get(key), shared)
        copied = self._trace(call)
        if not self.function.captures_vary:
            self._copies[key] = copied
        return copied

    def _trace(self, call: Call) -> CopiedRecomputation | None:
        """Copies of a new trace; None if they would not do the same."""
        try:
            traced = traced_calls.TracedCall(self.function.fn, call.packing, self.function.selective)
            if self.function.holds_tensors is not None and self.function.holds_tensors():
                return None  # Those of a copy would be others.
            if not traced.forward.is_closed:
                # It starts from logits that nobody looks at; a copy has to start from the tensor that they are behind.
                unread = traced.effects.unread
                packing = call.packing.without(unread)
                traced = traced_calls.TracedCall(self.function.fn, packing, self.function.selective)
                traced.effects = dataclasses.replace(traced.effects, unread=unread)
            if not traced.forward.is_closed:
                return None
        except OUT_OF_MEMORY:
            raise
        except Exception:  # What is the user's mistake is raised by the trace that is made instead.
            return None
        is_nested = self.function.replay_fn is not None
        return CopiedRecomputation(self._recomputation(call, traced.effects), traced, is_nested)

    @property
    def _copies(self) -> RecentlyUsed[Hashable, CopiedRecomputation | None]:
        """What is copied in the graph being built; None for what cannot be."""
        return self._copied.setdefault(tf.compat.v1.get_default_graph(), RecentlyUsed(_MOST_KNOWN))


def _of_counterpart(known: Any, shared: Counterpart) -> Any:
    """What the counterpart knows of a call, with the variables of this block; None if that is nothing."""
    effects = known if known is None or isinstance(known, Effects) else known.effects
    if effects is None or effects.obstacle is not None or effects.variables:
        return None
    reads, writes = shared.of(effects.reads), shared.of(effects.writes)
    if reads is None or writes is None:
        return None
    effects = dataclasses.replace(effects, reads=tuple(reads), writes=tuple(writes))
    traced = isinstance(known, (CompiledRecomputation, CopiedRecomputation))
    return SharedTrace(known, effects, shared.of) if traced else effects
