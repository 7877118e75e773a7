"""Recompute chosen layers of any model, subclassed ones included.

A chosen layer's `call` is replaced on that layer object; what Keras does around it (masks, autocast, regularizers,
building) stays as it is. A chosen layer inside another one, or in what is recomputed, is a part of that: no third run.
"""

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras

from tfgc._calls import names
from tfgc._core.plan import Plan
from tfgc._errors import UnsupportedModelError
from tfgc._framework import call_checks, keras_models, private_api, put_aside, whole_steps
from tfgc._pairs import joint
from tfgc._pairs.code import Code
from tfgc._pairs.pairs import Pairs
from tfgc._pairs.reading import Reading
from tfgc._pairs.segments import Planned
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._tracing import functional_graphs
from tfgc._training.segment_runner import Runner


@dataclasses.dataclass(frozen=True)
class _Replaced:
    """The layers that a model was enabled by, which may leave it, what replaces their `call`, and the plan, if any."""

    calls: list[tuple[weakref.ref, weakref.ref]]
    plan: Plan | None


_replaced: weakref.WeakKeyDictionary[keras.Layer, _Replaced] = weakref.WeakKeyDictionary()


class LayerCall:
    """Replaces the `call` of a layer; inference, which is `training=False` outside of all tapes, runs the original.

    Under a tape a layer may train although Keras says False: a `Dropout` that is called without `training` sets its
    default, False, for all calls after it, as in the `fit` of a model whose `call` takes no `training`.
    """

    is_patched_call = True

    def __init__(self, layer: keras.Layer, selective: bool = False) -> None:
        self._layer, self._original = weakref.ref(layer), layer.call
        functools.update_wrapper(self, self._original)
        self._name = f"layer {layer.path or layer.name!r}"
        self._pairs = Pairs(self._traced, self._name, Code(layer), _storing_products if selective else None)

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        made, layer = self._original(*args, **kwargs), self._layer()
        if joint.is_here() and layer is not None and put_aside.holds_tensors(layer):
            raise UnsupportedModelError("it puts a tensor aside in an attribute, where others find it")
        return made

    @property
    def obstacle(self) -> str | None:
        """Why the call that came last ran the original."""
        return self._pairs.obstacle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if joint.is_here() or whole_steps.is_here() or not private_api.could_train():
            return self._original(*args, **kwargs)
        call_checks.refuse_tf1_graph(self._name)
        if call_checks.is_empty(args, kwargs):
            return self._original(*args, **kwargs)
        return self._pairs(*args, **kwargs)


def _storing_products(reading: Reading, _: Any) -> Planned:
    """The step that stores the results of dear products of a layer, and makes all else again."""
    step = reading.as_run()
    end = max((i for i in step.order if i < reading.start), default=-1)
    return Planned(ordered(recomputed(step, [Cut(end, stores=reading.products)])))


def replace_calls(model: keras.Model, layers: Sequence[keras.Layer], plan: Plan | None = None) -> None:
    """Let each of these layers of `model` recompute its inside from now on."""
    selective = [] if plan is None else plan.selective_layers
    named = [False] * len(layers) if plan is None else [name in selective for name in plan.recomputed_layers]
    calls = [LayerCall(layer, chosen) for layer, chosen in zip(layers, named)]
    for layer, call in zip(layers, calls):
        functional_graphs.replace_method(layer, "call", call)
    _replaced[model] = _Replaced([(weakref.ref(layer), weakref.ref(call)) for layer, call in zip(layers, calls)], plan)


class ByCalls:
    """A plan by calls that a model may run by in turn with others: what takes the place of calls is made once.

    Those of the layers that it recomputes are replaced, and of functional parts with plans of their own.
    """

    def __init__(self, model: keras.Model, plan: Plan) -> None:
        self._model, self._plan = model, plan
        self._methods: list[tuple[keras.Layer, Callable]] = []
        self._replaced: _Replaced | None = None

    def run(self) -> None:
        """Let the model run by it; what was enabled of its parts before is undone, its own methods stay."""
        if self._replaced is not None:
            restore_parts(self._model)
            for layer, call in self._methods:
                functional_graphs.replace_method(layer, "call", call)
            _replaced[self._model] = self._replaced
            return
        layers, parts = names.layers_of(self._model, self._plan)
        runners = [(part, Runner(part, of_part, under_tapes=True)) for part, of_part in parts]
        restore_parts(self._model)
        replace_calls(self._model, layers, self._plan)
        for part, runner in runners:
            functional_graphs.replace_method(part, "call", runner.call)
            _replaced[self._model].calls.append((weakref.ref(part), weakref.WeakMethod(runner.call)))
        self._methods = [(layer, vars(layer)["call"]) for layer in [*layers, *(part for part, _ in parts)]]
        self._replaced = _replaced[self._model]


def run_by(model: keras.Model, by_calls: ByCalls | None) -> None:
    """Let a model run by a plan by calls, by its own code if None; parts that were enabled since keep their plans."""
    replaced = _replaced.get(model)
    own = {} if replaced is None else {layer(): call() for layer, call in replaced.calls}
    inside = [layer for layer in keras_models.layers_inside(model) if layer is not model]
    methods = [(layer, functional_graphs.replaced_methods(layer)) for layer in inside]
    later = [(layer, found) for layer, found in methods if found and found.get("call") != own.get(layer)]
    plans = {layer: _replaced[layer] for layer in inside if layer in _replaced}
    if by_calls is None:
        restore_parts(model)
    else:
        by_calls.run()
    for layer in [*plans, *(layer for layer, _ in later)]:
        restore_calls(layer)
    for layer, found in later:
        for name, method in found.items():
            functional_graphs.replace_method(layer, name, method)
    _replaced.update(plans)


def plan_of(model: keras.Model) -> Plan | None:
    """The plan by calls that a model runs by; None if it runs by no such plan."""
    replaced = _replaced.get(model)
    return None if replaced is None else replaced.plan


def planned_layers(models: Iterable[keras.Layer]) -> set[int]:
    """The ids of the layers whose calls belong to plans by calls of these models."""
    held = [(layer(), call()) for one in models if plan_of(one) for layer, call in _replaced[one].calls]
    return {id(layer) for layer, call in held if layer is not None and vars(layer).get("call") == call}


def restore_calls(model: keras.Model) -> set[keras.Layer]:
    """Give a model and all its layers back their original methods; return those whose `call` was another one."""
    changed = restore_parts(model)
    if functional_graphs.is_patched_call(model):
        functional_graphs.restore_methods(model)
        changed.add(model)
    return changed


def restore_parts(model: keras.Model) -> set[keras.Layer]:
    """Do the same for the layers inside of a model, and not for the model itself."""
    replaced = _taken(model).get(model)
    gone = [] if replaced is None else [(layer(), call()) for layer, call in replaced.calls]
    gone = [layer for layer, call in gone if layer is not None and call is not None and vars(layer).get("call") == call]
    changed = {part for part in [*keras_models.layers_inside(model), *gone] if functional_graphs.is_patched_call(part)}
    changed.discard(model)
    for layer in changed:
        functional_graphs.restore_methods(layer)
    return changed


@contextlib.contextmanager
def restored_afterwards(model: keras.Model) -> Iterator[None]:
    """Disable a model in here; afterwards it is enabled again if it was."""
    with contextlib.ExitStack() as stack:
        stack.callback(_replaced.update, _taken(model))
        stack.enter_context(functional_graphs.original_methods(model))
        stack.callback(restore_calls, model)
        yield


def _taken(model: keras.Model) -> dict[keras.Layer, _Replaced]:
    """What a model, and models inside of it, were enabled by, which is noted no longer."""
    return {layer: _replaced.pop(layer) for layer in keras_models.layers_inside(model) if layer in _replaced}
