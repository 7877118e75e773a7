"""Find segments that do the same with other weights, so that one is traced for all of them.

Only layers and ops of Keras itself are compared, by type, configuration, plain attributes, input shapes, variables and
wiring. A segment with anything that could hide a difference (a custom layer, a Lambda, an activation that is a
user's function, a variable in no list of Keras) shares no traces.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from tfgc._core.graph import Ref
from tfgc._core.segments import Segment
from tfgc._costs import node_costs
from tfgc._framework import keras_models
from tfgc._framework.layer_values import leaves
from tfgc._replay.known_calls import Counterpart, KnownCalls
from tfgc._tracing.keras_graph import Program

_PLAIN = (bool, int, float, str, type(None))
_BOOKS = ("keras.", "inspect", "collections", "_thread", "weakref")


def signature(
    program: Program, segment: Segment, nodes: Sequence[str], needed: Sequence[Ref], produced: Sequence[Ref]
) -> tuple | None:
    """What is equal for segments that can share traces; None for one that cannot.

    `nodes` are those of the segment in the order in which they run, which read what is `needed` from outside.
    """
    graph = program.graph
    places: dict[Ref, tuple] = {ref: ("given", i) for i, ref in enumerate(needed)}
    parts: list[tuple] = [tuple(graph.specs[ref] for ref in needed), _shape(segment)]
    seen: dict[int, int] = {}
    for i, name in enumerate(nodes):
        node = graph.nodes[graph.position[name]]
        call = node_costs.call_key(program, node)
        operation, arguments, _ = program.call_of(name)
        if call is None or not _is_comparable(operation, arguments):
            return None
        layer = isinstance(operation, keras.Layer)
        inside = keras_models.layers_inside(operation) if layer else [operation]
        state = [*inside, *operation.variables] if layer else []
        same = tuple(seen.setdefault(id(thing), len(seen)) for thing in state)
        attributes = tuple(map(_attributes, inside))
        if None in attributes:
            return None
        parts.append((call, tuple(places[ref] for ref in node.inputs), attributes, same))
        places.update((Ref(name, k), ("made", i, k)) for k in range(len(node.outputs)))
    return (*parts, tuple(places[ref] for ref in produced))


def counterparts(program: Program, first: Sequence[str], second: Sequence[str]) -> dict[int, Any]:
    """For each variable and layer of the first of two like segments, by id, the one in its place in the second."""
    pairs: dict[int, Any] = {}
    for one, other in zip(first, second):
        operations = [program.call_of(name)[0] for name in (one, other)]
        layers = [operation for operation in operations if isinstance(operation, keras.Layer)]
        flat = zip(*(keras_models.layers_inside(layer) for layer in layers))
        variables = zip(*(layer.variables for layer in layers))
        pairs.update((id(a), b) for group in (flat, variables) for a, b in group)
    return pairs


def _shape(segment: Segment) -> tuple:
    """Modes and sizes, at every level of a nest."""
    inner = None if segment.inner is None else tuple(map(_shape, segment.inner.segments))
    return (segment.mode, segment.selective, len(segment.nodes), inner)


def _is_comparable(operation: keras.Operation, arguments: Any) -> bool:
    """Whether configuration and arguments hold values, and not only the names of functions and arrays."""
    if not all(isinstance(leaf, (*_PLAIN, keras.KerasTensor)) for leaf in keras.tree.flatten(arguments)):
        return False
    if not isinstance(operation, keras.Layer):
        return True
    written = json.dumps(operation.get_config(), default=lambda _: {"module": "unknown"})
    return all(_of_keras(json.loads(written)))


def _of_keras(config: Any) -> Iterator[bool]:
    if isinstance(config, dict):
        module = config.get("module")
        yield module is None or (module.startswith("keras") and config.get("class_name") != "function")
        yield "__lambda__" not in config.values()
    items = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    for item in items:
        yield from _of_keras(item)


def _attributes(operation: keras.Operation) -> tuple | None:
    """What a layer or op has been given besides its configuration; None if that cannot be compared."""
    own = keras_models.own_attributes(operation)
    if not all(map(_is_plain, leaves([*own.values()], keys=True))):
        return None
    return tuple((key, _structure(own[key])) for key in sorted(own))


def _structure(value: Any) -> Any:
    """A value, and what is in it, as something hashable that is equal for equal structures of equal values."""
    if isinstance(value, dict):
        return dict, tuple((_value(key), _structure(inner)) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return list, tuple(map(_structure, value))
    return _value(value)


def _is_plain(leaf: Any) -> bool:
    """Plain values, and what Keras makes of a configuration or keeps its books in: no tensors, no others' functions."""
    if isinstance(leaf, (*_PLAIN, keras.Variable)):
        return True
    module = getattr(leaf, "__module__", None) if callable(leaf) else None
    return str(module or type(leaf).__module__).startswith(_BOOKS)


def _value(leaf: Any) -> Any:
    """What a plain value is compared by."""
    if isinstance(leaf, _PLAIN):
        return (type(leaf), leaf)
    return getattr(leaf, "__qualname__", type(leaf).__qualname__)


class Member:
    """Nodes of a segment to compare with others, and its `signature`, which changes when a layer does."""

    def __init__(self, program: Program, nodes: Sequence[str], kind_now: Callable[[], tuple | None]) -> None:
        self.program, self.nodes, self.kind_now = program, nodes, kind_now
        self.kind = kind_now()
        self.serves_others = False
        self._first_run: tuple[tuple | None, tuple | None] | None = None

    def noting(self, run: Callable) -> Callable:
        """`run`, the segment as a function, whose first call notes what layers change of themselves."""
        # A layer may note how it was called in attributes that it does not have before, as Keras's attention does.

        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._first_run is not None or not self.serves_others:
                return run(*args, **kwargs)
            before = self.kind_now()
            made = run(*args, **kwargs)
            self._first_run = before, self.kind_now()
            return made

        return noted

    def is_like(self, first: "Member") -> bool:
        """Whether a trace of `first` serves here: both are of one kind, or this one is as that was before it ran."""
        kind, other = self.kind_now(), first.kind_now()
        return kind is not None and (kind == other or first._first_run == (kind, other))


class Kinds:
    """The first segment of each kind, whose traces serve the others."""

    def __init__(self) -> None:
        self._first: dict[tuple, tuple[Member, KnownCalls]] = {}

    def first_like(self, member: Member) -> Counterpart | None:
        """The first segment of the kind of `member`, with the counterparts of its things; None if there is none."""
        if member.kind is None or member.kind not in self._first:
            return None
        first, calls = self._first[member.kind]
        first.serves_others = True
        things = counterparts(member.program, first.nodes, member.nodes)
        return Counterpart(calls, things, functools.partial(member.is_like, first))

    def add(self, member: Member, calls: KnownCalls) -> None:
        """Let a segment be the first of its kind, if it is, with what is known of its calls."""
        if member.kind is not None:
            self._first.setdefault(member.kind, (member, calls))
