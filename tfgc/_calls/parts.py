"""Functional models inside a model: run by plans of their own, as alternatives to recomputing them as a whole.

Such a part is planned for the shapes of its first call, and run by the plan in every call. A segment of the plan is one
piece of each call.
"""

from collections.abc import Container, Iterator, Mapping, Sequence

import keras

from tfgc import strategies
from tfgc._calls.options import Option
from tfgc._calls.replays import Piece
from tfgc._calls.step import Call
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._costs import node_costs
from tfgc._errors import TfgcError
from tfgc._framework import keras_models
from tfgc._tracing import functional_graphs, keras_graph

# Plans of one part to choose from.
_MOST = 8
# Places in a part where a segment of these may start.
_POSITIONS = 40


def planned_parts(
    names: Mapping[str, keras.Layer], calls: Mapping[keras.Layer, Sequence[Call]], xla: bool, most: int = _MOST
) -> list[Option]:
    """Options for the functional parts among some layers: for each at most so many plans, from the least peak on.

    `calls` are those of each layer that would run by its plan.
    """
    found, inside = [], set[Call]()
    for name, layer in names.items():
        of_layer = calls.get(layer, ())
        if not of_layer or inside.intersection(of_layer) or keras_models.functional_graph(layer) is None:
            continue
        inside.update(inner for call in of_layer for inner in call.within())
        try:
            graph = graph_of(layer, of_layer[0], xla=xla)
            program = keras_graph.Program(layer)
        except TfgcError:  # It cannot be cut, and is recomputed as a whole or not at all.
            continue
        found += [_option(program, name, layer, of_layer, plan) for plan in _plans(graph, most)]
    return found


def planned_part(name: str, layer: keras.Layer, calls: Sequence[Call], plan: Plan) -> Option:
    """The option of running a functional part by this plan in these calls."""
    program = keras_graph.Program(layer)
    plan.check(program.graph)
    return _option(program, name, layer, calls, plan)


def graph_of(layer: keras.Layer, call: Call, *, xla: bool) -> Graph:
    """The graph of a functional part, for the shapes of one of its calls."""
    inputs = functional_graphs.functional_of(layer).inputs
    shapes = call.inputs if len(call.inputs) == len(inputs) else ()
    given = {t.name: shape[1:] for t, shape in zip(inputs, shapes) if None in t.shape[1:]}
    batch_size = next((shape[0] for shape in call.inputs if shape), None)
    return node_costs.annotate(keras_graph.Program(layer, batch_size, given), xla=xla).counting(whole_step=True)


def _plans(graph: Graph, most: int) -> list[Plan]:
    """Plans without nesting, since pieces have none, from the least peak to nearly the plain step."""
    front = strategies.frontier(graph, positions=_POSITIONS, nested=False)
    plans = [strategies.apply("optimal", graph), *front.plans]
    plans = [plan for plan in plans if any(segment.mode == "recompute" for segment in plan.segments)]
    steps = max(1, -(-len(plans) // most))
    return plans[::steps]


def _option(program: keras_graph.Program, name: str, layer: keras.Layer, calls: Sequence[Call], plan: Plan) -> Option:
    segments = [segment for segment in plan.segments if segment.mode == "recompute"]
    pieces = []
    for call in calls:
        behind = _calls_behind(program, call)
        made = (Piece(tuple(behind[node] for node in s.nodes if node in behind), s.selective) for s in segments)
        pieces += [piece for piece in made if piece.calls]
    return Option(layer, name, plan, tuple(calls), tuple(pieces))


def _calls_behind(program: keras_graph.Program, call: Call) -> dict[str, Call]:
    """The call that each node of a functional part is, in one call of the part."""
    nodes: dict[int, list[str]] = {}
    for node in program.graph.nodes:
        nodes.setdefault(id(program.call_of(node.name)[0]), []).append(node.name)
    made: dict[int, list[Call]] = {}
    for inner in _outermost(call, nodes):
        made.setdefault(id(inner.layer), []).append(inner)
    # The nodes of one layer are in the order of its calls.
    return {name: behind for operation, names in nodes.items() for name, behind in zip(names, made.get(operation, ()))}


def _outermost(call: Call, operations: Container[int]) -> Iterator[Call]:
    """The calls of some operations inside of a call, without those inside of another one."""
    for child in call.children:
        if id(child.layer) in operations:
            yield child
        else:
            yield from _outermost(child, operations)
