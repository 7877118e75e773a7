"""Copy what was traced into the graph being built, instead of running its Python again.

An operation that is copied costs a tenth of one that Python makes. Values and control edges are those of the trace.

In a graph TensorFlow marks the results of a `tf.custom_gradient` by an operation that hands on results and arguments,
and registers its Python as the gradient of that operation. The Python closes over tensors of the graph that was traced,
which the graph of a copy does not have. So it runs once in the traced graph, and a copy's gradient, wanted for
gradients of gradients alone, is a copy of what it made.
"""

import functools
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._framework import graph_building, operation_order, operation_seeds, redundant_nodes, versions
from tfgc._framework.internals import ops
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._framework.shared_constants import Edge

# The attribute by which an operation names the gradient that it has in place of its type's.
_CUSTOM_GRADIENT = "_gradient_op_type"
# A name that is registered stays so: equal gradients share one. Beyond so many, replays are traced in place.
_names: dict[Any, str] = {}
_MOST_NAMES = 1024
_lock = threading.Lock()


class Order(NamedTuple):
    """Edges by which tensors wait for others, chosen by whether a copy needs a tensor without them for what is `asked`.

    Those of a replay are `BackwardChain.edges`.
    """

    edges: Callable[[Callable[[tf.Tensor], bool]], Iterable[tuple[tf.Tensor, list[tf.Tensor]]]]
    asked: Sequence[tf.Tensor]


class Part:
    """What a traced graph needs to make some tensors; a copy reads others in place of the `given` placeholders.

    Operations of `edges` wait in a copy for others, besides the edges of the graph, and so does what has an `order`. Of
    `operations`, by default all, what has an effect is copied although nothing reads it. Those `numbered`, by name, get
    a number in place of a seed. Where others are read `instead` of a tensor, by its name, the copy has the first of
    them, or itself, that is made of what it needs anyway, or else the last.
    """

    def __init__(
        self,
        graph: Any,
        given: Sequence[tf.Tensor],
        made: Sequence[tf.Tensor | None],
        edges: Iterable[Edge] = (),
        operations: Iterable[tf.Operation] | None = None,
        numbered: Iterable[str] = (),
        instead: Mapping[str, Sequence[tf.Tensor]] = types.MappingProxyType({}),
        order: Order | None = None,
    ) -> None:
        definition = graph.as_graph_def()
        nodes = {node.name: node for node in definition.node}
        for operation, others in edges:
            nodes[operation.name].input.extend(f"^{other.name}" for other in others)
        self._given = [t.op.name for t in given]
        self._made = [None if t is None else (t.name, t.shape) for t in made]
        # What prints or checks runs although nothing reads it.
        own = graph.get_operations() if operations is None else operations
        effects = [op.name for op in own if op.op_def.is_stateful]
        roots = [*effects, *(t.op.name for t in made if t is not None)]
        outside = {*self._given}
        others = {_source(name): [_source(t.name) for t in tensors] for name, tensors in instead.items()}
        redundant_nodes.replace(nodes, others, roots, outside)

        def reached(roots: Iterable[str]) -> set[str]:
            return operation_order.reached(roots, lambda name: redundant_nodes.names(nodes[name].input), outside)

        if order is not None:
            known = reached([*effects, *(t.op.name for t in order.asked)])
            for tensor, awaited in order.edges(lambda t: t.op.name in known):
                nodes[tensor.op.name].input.extend(f"^{other.op.name}" for other in awaited)
        redundant_nodes.bypass(definition.node, {t.op.name for t in made if t is not None})
        needed = reached(roots)
        self._read = {name for node in needed for name in _inputs(nodes[node]) if name.lstrip("^") in outside}
        self._definition = tf.compat.v1.GraphDef(versions=definition.versions)
        self._definition.node.extend(node for node in definition.node if node.name in needed)
        for node in self._definition.node:
            places = node.attr["_class"].list.s if "_class" in node.attr else []
            if any(place.decode().removeprefix("loc:@") not in needed for place in places):
                del node.attr["_class"]  # To be where an operation is that the copy does not have.
        self._numbered = [*numbered]

    def customize(self, graph: Any) -> bool:
        """Give copies of what has a custom gradient in `graph`, which was traced, gradients that are copies, too.

        False if one cannot be copied, since it depends on more than the function's arguments and results.
        """
        for node in self._customized():
            name = _registered(graph, graph.get_operation_by_name(node.name))
            if name is None:
                return False
            node.attr[_CUSTOM_GRADIENT].s = name.encode()
        return True

    def _customized(self) -> list[Any]:
        return [node for node in self._definition.node if _CUSTOM_GRADIENT in node.attr]

    def registered(self, places: list[int]) -> str | None:
        """The name of a gradient that copies this part, given these inputs by position; None if there can be none."""
        if self._customized() or not self.is_closed:
            return None
        written = self._definition.SerializeToString(deterministic=True)
        key = written, tuple(self._given), tuple(made and made[0] for made in self._made), tuple(places)
        with _lock:
            if key not in _names and len(_names) < _MOST_NAMES:
                _names[key] = f"tfgc-{len(_names)}"
                tf.RegisterGradient(_names[key])(functools.partial(_copied, self, places))
            return _names.get(key)

    @property
    def is_closed(self) -> bool:
        """Whether a copy needs no other placeholder of the graph than those given."""
        return not any(node.op == "Placeholder" for node in self._definition.node)

    def copy(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor | None]:
        """Make the tensors in the graph being built, of `tensors` of that graph in place of the placeholders."""
        places = dict(zip(self._given, tensors, strict=True))
        read = {f"{place}:0": tensor for place, tensor in places.items() if place in self._read}
        waited_for: set[tf.Operation] = set()
        for place, tensor in places.items():
            if f"^{place}" in self._read:
                # TensorFlow's importer fails where an operation waits for another one several times.
                read[f"^{place}"] = tf.identity(tensor) if tensor.op in waited_for else tensor
                waited_for.add(tensor.op)
        handed_on = {f"{place}:0": tensor for place, tensor in places.items()}
        shapes = dict(made for made in self._made if made is not None and made[0] not in handed_on)
        definition = self._renumbered() if self._numbered else self._definition
        new = tf.graph_util.import_graph_def(definition, input_map=read, return_elements=[*shapes], name=name)
        for tensor, shape in zip(new, shapes.values()):
            tensor.set_shape(shape)  # A shape that was set in Python is not in the definition of a graph.
        found = {**handed_on, **dict(zip(shapes, new))}
        return [None if made is None else found[made[0]] for made in self._made]

    def _renumbered(self) -> Any:
        """The definition, with the next numbers of the graph being built."""
        definition = tf.compat.v1.GraphDef()
        definition.CopyFrom(self._definition)
        nodes = {node.name: node for node in definition.node}
        for name in self._numbered:
            operation_seeds.renumber(nodes[name])
        return definition


def device() -> str:
    """Where the graph being built puts its next operation; empty where TensorFlow chooses."""
    return tf.no_op().device


def _source(name: str) -> str:
    """As which a tensor of this name is read in a definition."""
    return name.removesuffix(":0")


def _inputs(node: Any) -> list[str]:
    """The names of the nodes that a node reads, `^name` of those that it waits for."""
    return [source.partition(":")[0] for source in node.input]


def _registered(graph: Any, op: tf.Operation) -> str | None:
    """The name of a copy of the custom gradient of an operation."""
    with graph.as_default():
        upstream = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in op.outputs]
        start = len(graph.get_operations())
        try:
            gradients = versions.attribute(ops, "get_gradient_function")(op)(op, *upstream)
        except OUT_OF_MEMORY:
            raise
        except Exception:  # It is the user's code, and may ask for what is there in a training step alone.
            return None
    given = [*op.inputs, *upstream]
    places = list({t.ref(): i for i, t in enumerate(given)}.values())
    if not all(gradient is None or isinstance(gradient, tf.Tensor) for gradient in gradients):  # tf.IndexedSlices
        return None
    part = Part(graph, [given[i] for i in places], gradients, operations=graph.get_operations()[start:])
    return part.registered(places)


def _copied(part: Part, places: list[int], op: tf.Operation, *upstream: Any) -> list[Any]:
    given = [*op.inputs, *(tf.zeros_like(t) if u is None else u for t, u in zip(op.outputs, upstream))]
    return part.copy([graph_building.capture(given[i]) for i in places], "custom_gradient")
