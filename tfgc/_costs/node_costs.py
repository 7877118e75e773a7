"""Give every node of a model its true cost, read from the gradient graph of its call.

Each distinct call (layer configuration, input shapes, which inputs need a gradient) is traced once with its gradients,
on symbolic tensors of the full batch. Nothing is allocated or run.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.graph import Cost, Graph, Node, Ref, Spec
from tfgc._core.recently_used import RecentlyUsed
from tfgc._costs import gradient_graphs, grappler, xla_functions, xla_graph
from tfgc._costs.call_operations import Call
from tfgc._costs.gradient_graphs import Footprint
from tfgc._costs.tensor_buffers import tensor_bytes
from tfgc._costs.xla_functions import Temporary
from tfgc._framework import graph_building, keras_models, tensor_attributes
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._framework.replaced import within
from tfgc._pure import obstacles, side_effects
from tfgc._tracing.keras_graph import Program

_READ: RecentlyUsed[Hashable, Footprint] = RecentlyUsed(4096)
# Those of layers of the user's own, while one plan is made.
_OWN: contextvars.ContextVar[dict[Hashable, Footprint] | None] = contextvars.ContextVar("own", default=None)
# Random draws up to this share of what a node computes are stored for its replay, and not counted.
_UNCOUNTED = 1 / 64


def annotate(program: Program, *, xla: bool = False) -> Graph:
    """Return the graph of `program` with a `Cost` for each node, as TensorFlow runs it or as XLA compiles it."""
    try:
        return _annotated(program, xla)
    except _DoubtfulShapeError:
        program.distrust_layers()
        return _annotated(program, xla)


class _DoubtfulShapeError(Exception):
    """A call cannot be traced on what others are declared to make, or makes something else than it declares."""


def _annotated(program: Program, xla: bool) -> Graph:
    graph = program.graph
    graph.cut_bytes  # noqa: B018 - raises where a size is unknown
    flows: set[Ref] = set()
    nodes: list[Node] = []
    first_like: dict[Hashable, str] = {}
    footprints: dict[str, Footprint] = {}
    constants: dict[Any, int] = {}
    for node in graph.nodes:
        cost, footprint = _cost(program, node, tuple(ref in flows for ref in node.inputs), xla)
        first = first_like.setdefault(_same(program, node) or node.name, node.name)
        if first != node.name:
            cost, footprint = dataclasses.replace(_NOTHING, aliases=(Ref(first),)), None
        if footprint is not None:
            footprints[node.name] = footprint
            added = {made_of: size for made_of, size in footprint.constants.items() if made_of not in constants}
            constants.update(added)
            cost = dataclasses.replace(cost, resident_bytes=cost.resident_bytes + sum(added.values()))
        if cost.differentiable:
            flows.update(filter(graph.floating, node.made))
        nodes.append(dataclasses.replace(node, cost=cost))
    annotated = dataclasses.replace(graph, nodes=tuple(nodes))
    return xla_graph.fused(annotated, footprints) if xla else annotated


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Read a call of the same layer once in here, though its class may be the user's: one plan looks at it twice."""
    own = _OWN.get()
    with within(_OWN, {} if own is None else own):
        yield


# A node that TensorFlow's optimizer drops, since another one computes the same of the same inputs.
_NOTHING = Cost(saved_tensors=())


def _same(program: Program, node: Node) -> Hashable:
    """Equal for nodes of which TensorFlow runs one alone: no variables, no random numbers, the same inputs."""
    operation, _, _ = program.call_of(node.name)
    plain = len(node.outputs) == 1 and not (isinstance(operation, keras.Layer) and operation.variables)
    call = call_key(program, node) if plain else None
    return None if call is None else (call, node.inputs)


def _cost(program: Program, node: Node, wanted: tuple[bool, ...], xla: bool) -> tuple[Cost, Footprint | None]:
    specs = tuple(program.graph.specs[ref] for ref in node.inputs)
    call, readings = call_key(program, node, wanted), _READ
    if call is None:
        operation, arguments, training = program.call_of(node.name)
        call = (id(operation), str(arguments), specs, wanted, training)
        own = _OWN.get()
        readings = {} if own is None else own
    call = (call, xla, grappler.are_made(program.name))
    footprint = readings.get(call)
    if footprint is None:
        try:
            footprint, _ = _read(program, node, wanted, xla)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # The layer is the user's code; training it plainly may still work.
            if program.trusts_layers:
                raise _DoubtfulShapeError from error
            return dataclasses.replace(program.graph.cost(node), obstacle=obstacles.untraceable(error)), None
        readings[call] = footprint
    return _bound(node, footprint), footprint


def text(program: Program, graph: Graph, node: Node) -> str:
    """What the call of an annotated node and its gradients compute, without the numbers that TensorFlow gives names."""
    wanted = graph.cost(node).differentiable_inputs
    trace = _read(program, node, [ref in wanted for ref in node.inputs], False)[1].as_graph_def()
    operations, functions = ([re.sub(r"[-_]\d+", "", str(x)) for x in y] for y in (trace.node, trace.library.function))
    return "\n".join([*operations, *sorted(functions)])


def call_key(program: Program, node: Node, wanted: Iterable[bool] = ()) -> Hashable:
    """Equal for calls that trace to the same graph with other weights; None where that cannot be known.

    `wanted` says which inputs gradients are wanted of; without it, calls are told apart by what they do forward.
    """
    operation, arguments, training = program.call_of(node.name)
    layer = isinstance(operation, keras.Layer)
    if not keras_models.is_keras_own(operation):
        return None
    try:
        config = operation.get_config()
        config.pop("name", None)
        written = json.dumps(config, default=str, sort_keys=True)
    except Exception:  # A configuration is the user's code; without one the call shares no trace.
        return None
    variables = [(tuple(v.shape), str(v.dtype), v.trainable) for v in operation.variables] if layer else []
    static = keras.tree.map_structure(_written, arguments)
    repeated = tuple(node.inputs.index(ref) for ref in node.inputs)
    masks = tuple(map(program.masks_of(node.name).get, node.inputs))
    specs, wanted = tuple(program.graph.specs[ref] for ref in node.inputs), tuple(wanted)
    return (type(operation), written, specs, masks, wanted, repeated, str(variables), str(static), training)


def _written(value: Any) -> str | None:
    """An argument of a call as a text that no other one has; None for a tensor. NumPy prints large arrays in part."""
    if isinstance(value, keras.KerasTensor):
        return None
    if isinstance(value, tf.Tensor) and tf.executing_eagerly():
        value = value.numpy()
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return str(value)
    return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"


def _read(program: Program, node: Node, wanted: Sequence[bool], xla: bool) -> tuple[Footprint, Any]:
    """Trace one call with its gradients; also returns the graph of the trace."""
    refs = tuple(dict.fromkeys(node.inputs))
    shapes, flowing = {ref: program.graph.specs[ref] for ref in refs}, dict(zip(node.inputs, wanted))
    with graph_building.scratch_graph("cost").as_default() as graph:
        table = {ref: tf.compat.v1.placeholder(shapes[ref].dtype, shapes[ref].shape) for ref in refs}
        inputs = list(table.values())
        masks = {ref: tf.compat.v1.placeholder(m.dtype, m.shape) for ref, m in program.masks_of(node.name).items()}
        for ref, mask in masks.items():
            tensor_attributes.set_mask(table[ref], mask)
        sources = [table[ref] for ref in refs if flowing[ref]]

        def call() -> list[Any]:
            program.run([node.name], table, training=True)
            # Of a sparse output its values: its `Spec` counts it as if it were dense.
            return [t.values if isinstance(t, tf.SparseTensor) else t for t in map(table.get, node.made)]

        functions: list[Temporary] = []
        apart = None if xla else xla_functions.measured(functions.append)
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs, scope, variables, trainable = side_effects.symbolic(call, tape, apart)
        behind = tuple("" if any(t is x for x in inputs) else tensor_attributes.logits_behind(t) for t in outputs)
        obstacle = scope.obstacle or obstacles.obstacle(graph, _UNCOUNTED)
        copied = obstacles.can_be_copied(graph)
        if program.trusts_layers and not all(map(_is_declared, outputs, node.outputs)):
            raise _DoubtfulShapeError
        targets = [t for t in [*outputs, *scope.losses] if t.dtype.is_floating or t.dtype.is_complex]
        upstream = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in targets]
        gradients = tape.gradient(targets, [*sources, *trainable], output_gradients=upstream)
    footprint = gradient_graphs.footprint(
        Call(graph, inputs, variables, outputs, upstream, gradients, sources, program.name),
        xla=xla,
        temporary=Temporary(*map(max, zip(Temporary(), *functions))),  # They run one after the other.
    )
    found = dict(zip([ref for ref in refs if flowing[ref]], gradients))
    weights = [g for g in gradients[len(sources) :] if g is not None]
    cost = dataclasses.replace(
        footprint.cost,
        gradient_bytes=sum(tensor_bytes(t) for g in weights for t in tf.nest.flatten(g, True)),
        table_bytes=sum((g.shape.num_elements() or 0) * g.dtype.size for g in weights if not isinstance(g, tf.Tensor)),
        differentiable=any(g is not None for g in gradients),
        logits=behind,
        obstacle=obstacle,
        copied=copied,
    )
    flows = tuple(i for i, ref in enumerate(refs) if found.get(ref) is not None)
    return dataclasses.replace(footprint, cost=cost, differentiable_inputs=flows), graph


def _is_declared(made: tf.Tensor, declared: Spec) -> bool:
    """Whether an output may have the shape that was declared for it; of a sparse one nobody knows how many values."""
    return made.shape.is_compatible_with(declared.shape) or not made.shape.is_fully_defined()


def _bound(node: Node, footprint: Footprint) -> Cost:
    """The `Cost` of a node whose call was read, with its tensors by name."""
    refs = tuple(dict.fromkeys(node.inputs))

    def at(positions: Iterable[int]) -> tuple[Ref, ...]:
        return tuple(refs[i] for i in positions)

    return dataclasses.replace(
        footprint.cost,
        saved_tensors=(*at(footprint.kept_inputs), *(Ref(node.name, i) for i in footprint.kept_outputs)),
        differentiable_inputs=at(footprint.differentiable_inputs),
        passthrough_inputs=at(footprint.passthrough_inputs),
        aliases=tuple(None if i is None else refs[i] for i in footprint.aliases),
        overwrites=None if footprint.overwrites is None else refs[footprint.overwrites],
    )
