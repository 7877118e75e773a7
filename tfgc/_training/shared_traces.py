"""Find segments that do the same with other weights, so that one is traced for all of them.

Only layers and ops of Keras itself are compared, by type, configuration, plain attributes, input shapes, variables and
wiring. Whatever could hide a difference (a custom layer, a Lambda, an activation that is a function
of the user's, a variable in no list of Keras) makes a segment stand by itself.
"""

import dataclasses
import json

import keras

from tfgc._core.graph import Ref
from tfgc._costs import node_costs

_PLAIN = (bool, int, float, str, type(None))
_BOOKS = ("keras.", "inspect", "collections", "_thread", "weakref")
_NAMES = ("name", "_losses", "_loss_ids", "_path", "_parent_path", "_auto_config", "_inbound_nodes", "_outbound_nodes")


def signature(program, segment, nodes, needed, produced):
    """Equal for segments that are twins; None for one that stands by itself.

    `nodes` are in the order in which they run, `needed` the `Ref`s that they read from outside, `produced`
    those that others read of them.
    """
    graph = program.graph
    places = {ref: ("given", i) for i, ref in enumerate(needed)}
    parts, seen = [tuple(graph.specs[ref] for ref in needed), _shape(segment)], {}
    for i, name in enumerate(nodes):
        node = graph.nodes[graph.position[name]]
        call = node_costs.call_key(program, node)
        operation, arguments, _ = program.call_of(name)
        if call is None or not _tells_all(operation, arguments):
            return None
        layer = isinstance(operation, keras.Layer)
        inside = operation._flatten_layers() if layer else [operation]
        state = [*inside, *operation.variables] if layer else []
        same = tuple(seen.setdefault(id(thing), len(seen)) for thing in state)
        attributes = tuple(map(_attributes, inside))
        if None in attributes:
            return None
        parts.append((call, tuple(places[ref] for ref in node.inputs), attributes, same))
        places.update((Ref(name, k), ("made", i, k)) for k in range(len(node.outputs)))
    return (*parts, tuple(places[ref] for ref in produced))


def renaming(program, first, second):
    """What stands in the nodes of the second of two twins for each variable and layer of the first, by id."""
    pairs = {}
    for one, other in zip(first, second):
        layers = [program.call_of(name)[0] for name in (one, other)]
        if not isinstance(layers[0], keras.Layer):
            continue
        flat = zip(*(layer._flatten_layers() for layer in layers))
        variables = zip(*(layer.variables for layer in layers))
        pairs.update((id(a), b) for group in (flat, variables) for a, b in group)
    return pairs


def _shape(segment):
    """Modes and sizes, at every level of a nest."""
    inner = None if segment.inner is None else tuple(map(_shape, segment.inner.segments))
    return (segment.mode, len(segment.nodes), inner)


def _tells_all(operation, arguments):
    """Whether configuration and arguments can be compared: of a user's function, or an array, they give but a name."""
    if not all(isinstance(leaf, (*_PLAIN, keras.KerasTensor)) for leaf in keras.tree.flatten(arguments)):
        return False
    if not isinstance(operation, keras.Layer):
        return True
    written = json.dumps(operation.get_config(), default=lambda _: {"module": "unknown"})
    return all(_of_keras(json.loads(written)))


def _of_keras(config):
    if isinstance(config, dict):
        module = config.get("module")
        yield module is None or (module.startswith("keras") and config.get("class_name") != "function")
        yield "__lambda__" not in config.values()
    items = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    for item in items:
        yield from _of_keras(item)


def _attributes(operation):
    """What a layer or op has been given besides its configuration; None if that cannot be compared."""
    own = {key: value for key, value in vars(operation).items() if key not in _NAMES and not key.startswith("_self_")}
    found = []
    for key in sorted(own):
        leaves = keras.tree.flatten(own[key])
        if not all(map(_comparable, leaves)):
            return None
        found.append((key, tuple(map(_told, leaves))))
    return tuple(found)


def _comparable(leaf):
    """Plain values, and what Keras makes of a configuration or keeps its books in: no tensors, no others' functions."""
    if isinstance(leaf, (*_PLAIN, keras.Variable)):
        return True
    module = getattr(leaf, "__module__", None) if callable(leaf) else None
    return str(module or type(leaf).__module__).startswith(_BOOKS)


def _told(leaf):
    if isinstance(leaf, _PLAIN):
        return (type(leaf), leaf)
    return getattr(leaf, "__qualname__", type(leaf).__qualname__)


@dataclasses.dataclass(frozen=True)
class Twin:
    """The block that is traced, what stands here for its variables and layers, and whether both are alike by now."""

    block: object
    names: dict
    alike: object

    def renamed(self, things):
        """The counterparts of variables or layers; None if one of them has none."""
        found = [self.names.get(id(thing)) for thing in things]
        return None if any(thing is None for thing in found) else found
