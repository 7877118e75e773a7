"""The pairs of a function: one for each kind of call, traced when it comes first."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._error_texts import one_line
from tfgc._errors import NotReplayableWarning, UnsupportedModelError, warn
from tfgc._framework import added_losses, graph_building, keras_state, own_replica, private_api
from tfgc._framework.keras_state import Surroundings
from tfgc._framework.memory_counts import OUT_OF_MEMORY
from tfgc._pairs.code import Code
from tfgc._pairs.pair import Pair, Shapes, SizedPlan, may_flow, open_where_they_differ
from tfgc._pairs.slices import WHOLE, Slices
from tfgc._pairs.tensor_packing import Packing

# Kinds of calls that are known, and of each the pairs that differ in sizes and in the variables that gradients flow to.
_MOST_KNOWN, _MOST_ALIKE = 64, 8
# Of one kind so many are traced for their sizes, and then one for all.
_MOST_SIZES = 2
_UNTRACEABLE = "it cannot be traced ({}). Use TensorFlow operations if it asks for the values of tensors"
_BRANCHES = (
    "branches of a tf.cond or tf.switch_case in it read different tensors, and eager code has no gradient for what the "
    "branch that is not taken reads. Call it inside of a tf.function, or set one result by tf.where"
)


class Pairs:
    """The pairs of a function, one for each kind of call.

    Args:
        fn: Any function of tensors, a Keras layer or a model.
        name: What messages call it.
        code: What it reads besides its arguments. Default: what its Python code says.
        plan: What makes the step that runs of a trace. Default: backward makes all again.
        is_bounded: Whether what was planned for some sizes holds for no larger ones.
        otherwise: What runs a call that cannot be traced. Default: the function.
        slices: What its pairs run in, if they do.

    Attributes:
        obstacle: Why the call that came last was not traced, or None.
    """

    def __init__(
        self,
        fn: Callable,
        name: str,
        code: Any = None,
        plan: SizedPlan | None = None,
        *,
        is_bounded: bool = False,
        otherwise: Callable | None = None,
        slices: Slices | None = None,
    ) -> None:
        self._fn, self._name, self._code, self._plan = fn, name, code or Code(fn), plan
        self._slices = slices
        self._is_bounded, self._otherwise = is_bounded, otherwise or fn
        self.obstacle: str | None = None
        self._known: RecentlyUsed[Any, list[Pair]] = RecentlyUsed(_MOST_KNOWN)
        self._warned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(args, kwargs)[0]

    def forget(self) -> None:
        """Trace, and plan, each kind of call anew."""
        self._known.clear()

    def run(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Pair | None]:
        """What a call returns, and the pair that ran it, if one did."""
        scope = keras_state.stateless_scope_here()
        if scope is None:
            return self._run(self._fn, args, kwargs)
        # Only shapes are looked at, or a scope has values of its own.
        if keras_state.in_symbolic_scope() or type(scope) is not keras.StatelessScope:
            return self._fn(*args, **kwargs), None
        call = _StatelessCall(self._fn, scope)
        made, pair = self._run(call, (call.given, args, kwargs), {})
        return call.finish(*made), pair

    def _run(self, fn: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Pair | None]:
        given = tf.nest.map_structure(_as_tensor, (args, kwargs))  # as a `tf.function` does
        packing = Packing(given)
        tensors = packing.take_tensors()
        try:
            pair = self._pair(fn, packing, tensors)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # The plain run that follows raises what is the user's mistake.
            if self._slices and isinstance(error, UnsupportedModelError):
                raise
            return self._plainly(_UNTRACEABLE.format(one_line(error)), fn, args, kwargs), None
        obstacle = _BRANCHES if tf.executing_eagerly() and pair.branches_differ else pair.joint.unsupported
        if obstacle:
            return self._plainly(obstacle, fn, args, kwargs), None
        self.obstacle = None
        handles = (graph_building.capture(variable.handle) for variable in pair.joint.variables)
        if private_api.has_tangents([*tensors, *handles]):
            return fn(*args, **kwargs), None
        if not tf.executing_eagerly() and pair.may_serve_again and pair.directions.is_as_traced:
            return fn(*args, **kwargs), pair  # A graph updates as gradients come, and a pair gives all at once.
        return pair((args, kwargs), tensors), pair

    def _pair(self, fn: Callable, packing: Packing, tensors: Sequence[tf.Tensor]) -> Pair:
        """The pair for a call of what runs the function, traced if none is known."""
        flows = tuple(map(may_flow, tensors))
        shapes = self._slices.shapes(packing) if self._slices else packing.shapes
        code, settings, owner = self._code.read()
        around = Surroundings(settings)
        is_known = code is not None and packing.is_hashable and fn is self._fn
        kind = own_replica.key(), private_api.in_xla(), code, packing.key, flows, around.key
        known = (self._known.get(kind) or []) if is_known else []
        for pair in known:
            if pair.takes(shapes) and pair.serves() and self._holds(pair, shapes):
                if isinstance(self._fn, keras.Layer) and keras_state.call_context() is None:
                    added_losses.clear_losses(self._fn)
                return pair
        traced = functools.partial(Pair, fn, packing, flows, around, self._name, owner, plan=self._plan)
        if self._slices:
            traced = functools.partial(self._slices.pair, (code, packing.key, around.key), tensors, packing, traced)
        sizes = {shapes, *(pair.shapes for pair in known)}
        with contextlib.nullcontext() if settings is None else settings.watched():
            pair = None
            if len(sizes) > _MOST_SIZES:
                with contextlib.suppress(ValueError, TypeError):  # of code that computes with a size
                    pair = traced(shapes=open_where_they_differ(sizes))
            pair = pair or traced(shapes=shapes)
        if is_known and pair.may_serve_again:
            self._known[(*kind[:-1], Surroundings(settings).key)] = [pair, *known][:_MOST_ALIKE]
        return pair

    def _holds(self, pair: Pair, shapes: Shapes) -> bool:
        """Whether what was planned for a pair holds for tensors of some shapes."""
        sizes = zip(*(itertools.chain.from_iterable(filter(None, each)) for each in (shapes, pair.planned_for)))
        return not self._is_bounded or all(None in pair or pair[0] <= pair[1] for pair in sizes)

    def _plainly(self, obstacle: str, fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        if self._slices:
            raise UnsupportedModelError(f"{self._name} cannot run in slices of the batch: {obstacle}. {WHOLE}")
        self.obstacle = obstacle
        run = self._otherwise if fn is self._fn else fn
        if not self._warned:
            self._warned = True
            how = "recomputed part by part" if run is not fn else "not recomputed"
            warn(f"{self._name} is {how}: {obstacle}.", NotReplayableWarning)
        return run(*args, **kwargs)


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


class _StatelessCall:
    """A function called in a `keras.StatelessScope`, as one of the values there, which are tensors, and it writes."""

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
