"""Split a model into sub-models: plain `keras.Model`s that compose.

The parts share the model's layers, which keep only the nodes that they had.

Known weakness. An enabled part no longer notices that the model was changed.
"""

import bisect
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from tfgc import strategies
from tfgc._core.graph import Graph, Ref
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, PlanMismatchError, check_int
from tfgc._framework import keras_models
from tfgc._framework.model_checks import check_model
from tfgc._planning import ahead
from tfgc._tracing import keras_graph


def split(model: keras.Model, n_or_plan: int | Plan) -> list[keras.Model]:
    """Return models that, called one after the other, compute what `model` does.

    Each takes what the one before returns: one tensor, or a list of all the tensors that cross the cut. A pass-through
    tensor goes through an `Identity` layer. The parts share the layers of `model`, so training them trains it, and the
    layers keep the inbound nodes they had.

    Args:
        model: A built `keras.Sequential` or functional model.
        n_or_plan: A number of parts (of about equal output bytes, cut where
            little is alive), or a `tfgc.Plan`: a part ends behind the layer in which a segment ends.

    Returns:
        A list of `keras.Model`.

    Raises:
        UnsupportedModelError: If the model is subclassed or not built.
        OptionError: For a number below 1 or above the number of nodes.
        PlanMismatchError: If the plan was made for another model; in a call of a
            part, if the model's layers have changed since.

    Example:
        >>> import keras, numpy as np, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
        >>> x = np.ones((2, 8), "float32")
        >>> y = x
        >>> for part in tfgc.split(model, 2):
        ...     y = part(y)
        >>> bool(np.array_equal(y, model(x)))
        True
    """
    check_model(model)
    program = keras_graph.Program(model)
    if isinstance(n_or_plan, Plan) and n_or_plan.operations:
        plan = _by_layers(program, n_or_plan)
    elif isinstance(n_or_plan, Plan):
        plan = n_or_plan
    else:
        n = check_int("split into n", n_or_plan)
        if n > len(program.graph):
            raise OptionError(
                f"split into n={n}: the model has {len(program.graph)} nodes, and a part has at least one"
            )
        plan = strategies.apply("sqrt" if program.graph.sizes_known else "uniform", program.graph, segments=n)
    plan.check(program.graph)
    cuts = [*_crossings(program.graph, plan), program.outputs]
    return [
        _part(program, i, segment.nodes, cuts[i], cuts[i + 1], last=i == len(plan.segments) - 1)
        for i, segment in enumerate(plan.segments)
    ]


def _by_layers(program: keras_graph.Program, plan: Plan) -> Plan:
    """The plan of nodes whose parts end behind the layers in which the segments of a plan of operations end."""
    nodes = [node.name for node in program.graph.nodes]
    called = [program.operations[name] for name in nodes]
    layers = [*dict.fromkeys(each for each in called if isinstance(each, keras.Layer))]
    bounds, spans = ahead.plans_for(program.model, plan.batch_size).places(plan, layers)
    calls = {id(layer): iter(each) for layer, each in zip(layers, spans)}
    places, at = [], 0
    for each in called:
        _, end = next(calls.get(id(each), iter(())), (0, 0))
        at = max(at, bisect.bisect_left(bounds, end - 1))
        places.append(at)
    cuts = [i for i in range(1, len(nodes)) if places[i] != places[i - 1]]
    return Plan.from_cuts(program.graph, cuts, strategy=plan.strategy)


def _crossings(graph: Graph, plan: Plan) -> Iterator[tuple[Ref, ...]]:
    """The tensors that enter each segment, needed by it or by a later one."""
    made = {Ref(name) for name in graph.inputs}
    wanted = [set(graph.outputs)]
    for segment in reversed(plan.segments):
        inputs = {ref for name in segment.nodes for ref in graph.nodes[graph.position[name]].inputs}
        wanted.append(wanted[-1] | inputs)
    for i, segment in enumerate(plan.segments):
        enters = made if i == 0 else made & wanted[len(plan.segments) - i]
        yield tuple(ref for ref in graph.specs if ref in enters)
        made |= {ref for ref in graph.specs if ref.node in set(segment.nodes)}


def _part(
    program: keras_graph.Program, i: int, nodes: Sequence[str], enter: Sequence[Ref], leave: Sequence[Ref], last: bool
) -> keras.Model:
    """Build one part on new inputs, sharing the layers. What is new in it has the same names each time."""
    name = f"{program.name}_part{i}"

    def build() -> keras.Model:
        inputs = [program.placeholder(ref, f"{name}_input{k}") for k, ref in enumerate(enter)]
        table = dict(zip(enter, inputs))
        program.run(nodes, table)
        made = [_pass(table[ref], f"{name}_output{k}") if ref in enter else table[ref] for k, ref in enumerate(leave)]
        single = keras_models.unpack_singleton
        taken = program.function.structured_inputs(inputs) if i == 0 else single(inputs)
        given = program.function.structured_outputs(made) if last else single(made)
        return keras.Model(taken, given, name=name)

    with _no_nodes_left(program):
        part = build()
    part.get_config = functools.partial(_config, part, program, build)
    part.call = _Call(part, program)
    # Masks go through a part on its tensors, as they go through the model: Keras need not warn that they are lost.
    part.supports_masking, part.compute_mask = True, lambda inputs, previous_mask: None
    return part


class _Call:
    """Replaces the `call` of a part, and raises if the model has another graph by now."""

    runs_the_graph = True

    def __init__(self, part: keras.Model, program: keras_graph.Program) -> None:
        self._original, self._program = part.call, program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._program.is_current:
            raise PlanMismatchError(f"{self._program.name!r} has changed since it was split: split it again")
        return self._original(*args, **kwargs)


def _pass(tensor: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Pass a tensor through unchanged, whatever the dtype policy says."""
    exact = {"dtype": tensor.dtype} if tensor.dtype.startswith(("float", "bfloat")) else {}
    return keras.layers.Identity(name=name, **exact)(tensor)


def _config(part: keras.Model, program: keras_graph.Program, build: Callable[[], keras.Model]) -> dict[str, Any]:
    """What `get_config` of a part returns: Keras looks for its nodes on the layers, so it is built once more."""
    with _no_nodes_left(program):
        built = build()
        return {**type(built).get_config(built), "trainable": part.trainable}


@contextlib.contextmanager
def _no_nodes_left(program: keras_graph.Program) -> Iterator[None]:
    """Undo the nodes that symbolic calls in here append to the model's layers."""
    layers = {id(operation): operation for operation in program.operations.values()}
    before = [(nodes, len(nodes)) for layer in layers.values() for nodes in keras_models.node_lists(layer)]
    try:
        yield
    finally:
        for nodes, count in before:
            del nodes[count:]
