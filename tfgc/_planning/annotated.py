"""A model with a batch size and with its open dimensions settled, as a graph with costs."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._costs import loss_bytes, node_costs, timing, update_bytes
from tfgc._errors import NotReplayableWarning, OpenSizesWarning, OptionError, UnsupportedModelError, check_int, warn
from tfgc._framework import keras_models
from tfgc._planning import free_memory
from tfgc._simulate import outlooks
from tfgc._tracing import example_sizes, keras_graph

# Bytes of one sample are read at this batch, large enough for what does not grow with it to vanish.
NOMINAL_BATCH = 64
# A size to give where one is open, in messages.
_FOR_EXAMPLE = 128
# Up to here floats count bytes exactly.
_MOST_BYTES = 2**53


def graph_of(
    model: keras.Model,
    batch_size: int | None,
    input_shapes: keras_graph.Shapes | None,
    example: Any,
    *,
    measure: bool = False,
    whole_step: bool = False,
    loss: Any = None,
    optimizer: Any = None,
    seen: bool = False,
    xla: bool = False,
    options: Mapping[str, Any] = {},
) -> Graph:
    """The annotated graph of a model; its costs are left out where sizes are open and no bytes are asked for.

    `seen` says that the example was seen in a call, so that its sizes stand above those that the model declares; `xla`
    that XLA compiles the step. `options` are those of the strategy.
    """
    if xla and measure:
        raise OptionError("measure=True times layers as TensorFlow runs them, not as XLA compiles them: leave it out")
    shape = getattr(batch_size, "shape", ())
    if shape != ():
        raise OptionError(
            f"batch_size is an array of shape {tuple(shape)}: give a batch as example=batch, or the number "
            "of its samples"
        )
    if batch_size is not None:
        batch_size = check_int("batch_size", batch_size)
    if example is not None:
        if input_shapes is not None:
            raise OptionError(example_sizes.EITHER)
        example_batch, input_shapes = example_sizes.shapes(model, example)
        if not seen:
            example_sizes.check_sizes(model, example)
        if batch_size is not None and example_batch not in (None, batch_size):
            raise OptionError(
                f"batch_size={batch_size}, but the example is a batch of {example_batch}: give either one"
            )
        batch_size = example_batch or batch_size
    declared = example_sizes.declared_batch(model)
    asked = whole_step or measure
    if asked and batch_size is None and declared is None:
        raise OptionError("batch_size is needed where bytes or seconds are compared: give batch_size=32, for example")
    batch = batch_size or declared or NOMINAL_BATCH
    program = keras_graph.Program(model, batch, input_shapes, seen)
    if not program.graph.nodes:
        raise nothing_to_train(model)
    if not program.graph.sizes_known:
        if not asked:
            return program.graph
        if (given := open_inputs(program.graph)) is not None:
            raise OptionError(f"{given[0]}, and bytes are known only with them: give {given[1]}, or example=batch")
    graph = node_costs.annotate(program, xla=xla)
    if graph.sizes_known and sum(map(graph.bytes, graph.specs)) > _MOST_BYTES:
        raise OptionError(f"batch_size={batch}: the tensors of a step take more than 2**53 bytes: use a smaller batch")
    for node, cost in zip(graph.nodes, graph.costs):
        if cost.obstacle:
            warn(f"{node.name!r} cannot be run twice, so its segment is kept: {cost.obstacle}.", NotReplayableWarning)
    if measure:
        graph = _timed(program, graph, lambda part: keras_graph.Program(model, part, input_shapes, seen))
    return with_step(graph, model, loss, optimizer) if whole_step else graph


def nothing_to_train(model: keras.Model) -> UnsupportedModelError:
    """The error for a model without weights."""
    return UnsupportedModelError(
        f"{model.name!r} has no weights, so there is nothing to train and nothing to recompute"
    )


def _timed(program: keras_graph.Program, graph: Graph, read: Callable[[int], keras_graph.Program]) -> Graph:
    """The graph with the seconds of its nodes in a plain step, of a part of the batch where all of it may not fit."""
    batch = graph.batch_size or 1
    plain = outlooks.plain_peak(graph.counting(whole_step=True))
    part, room = batch, free_memory.free_bytes() / 2
    while part > 1 and plain * part > room * batch:
        part //= 2
    if part == batch:
        return timing.timed(graph, timing.times(program, graph))
    smaller = read(part)
    return timing.timed(graph, timing.times(smaller, node_costs.annotate(smaller)), batch / part)


def with_step(graph: Graph, model: keras.Model, loss: Any = None, optimizer: Any = None) -> Graph:
    """The graph of the whole step, with what loss, metrics and the update need.

    By default they are those that `model` is compiled with.
    """
    losses = keras_models.compiled_losses(model) if loss is None else [[loss]] * len(graph.outputs)
    course, eager_course, written_over = loss_bytes.courses(graph, model, losses, are_compiled=loss is None)
    update = update_bytes.of_model(model, optimizer)
    early, of_rows = (0.0, 0.0) if graph.xla else (update.early, update.of_rows)
    return dataclasses.replace(
        graph,
        loss=course,
        eager_loss=eager_course,
        written_over=written_over,
        whole_step=True,
        early_update=early,
        table_update=of_rows,
        late_updates=update.needs_all,
    )


def open_inputs(graph: Graph) -> tuple[str, str] | None:
    """Which inputs leave sizes open, and how to give them, for example; None if none does."""
    shapes = {name: spec.shape[1:] for name, spec in graph.inputs.items() if spec.open}
    if not shapes:
        return None
    said = ", ".join(f"{name!r} is {shape}" for name, shape in shapes.items())
    given = {name: tuple(size or _FOR_EXAMPLE for size in shape) for name, shape in shapes.items()}
    return f"the model leaves sizes of its inputs open ({said})", f"input_shapes={given}, without the batch"


def warn_of_open_sizes(graph: Graph) -> None:
    """Warn that nothing is recomputed, since the sizes of `graph` are not known, and say how to give them."""
    given = open_inputs(graph)
    if given is not None:
        why, remedy = given[0], f"give them to tfgc.plan: {given[1]}, or example=batch"
    else:
        ref, spec = next((ref, spec) for ref, spec in graph.specs.items() if spec.open)
        why = (
            f"{ref.node!r} makes a tensor of shape {spec.shape}, whose unknown sizes depend on the values in the batch"
        )
        remedy = "give it a fixed size, or apply it to the data before the model"
    warn(
        f"nothing is recomputed: {why}, so a plan may need more than storing everything. To save memory, {remedy}; "
        "strategy='uniform' recomputes without knowing sizes.",
        OpenSizesWarning,
    )


def per_sample(plan: Plan, graph: Graph) -> Plan:
    """The plan with bytes and work of one sample in place of those of the batch of `graph`."""
    return dataclasses.replace(_divided(plan, graph.batch_size or NOMINAL_BATCH), batch_size=None)


def _divided(record: Any, batch: int) -> Any:
    """A plan, segment or outlook, and what is in it, with so many times less bytes and work."""
    found: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(record)):
        value = getattr(record, name)
        if name == "segments":
            found[name] = tuple(_divided(segment, batch) for segment in value)
        elif name in ("inner", "outlook"):
            found[name] = value and _divided(value, batch)
        elif name.endswith(("_bytes", "work")) and value is not None:
            found[name] = value // batch if name.endswith("_bytes") else value / batch
    return dataclasses.replace(record, **found)
