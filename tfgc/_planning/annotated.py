"""What a plan depends on besides the model: batch, open dimensions, fixed bytes, the budget in bytes."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan, Segment
from tfgc._costs import node_costs, timing
from tfgc._errors import NotReplayableWarning, OpenSizesWarning, OptionError, check_int, did_you_mean, warn
from tfgc._planning import free_memory
from tfgc._simulate import simulator
from tfgc._tracing import keras_graph
from tfgc._units import parse_bytes

# Bytes of one sample are read at this batch, large enough for what does not grow with it to vanish.
NOMINAL_BATCH = 64
# The share of free memory that is left for fragmentation, and for what else the process holds.
MARGIN = 0.1


def graph_of(
    model: keras.Model,
    batch_size: int | None,
    input_shapes: Mapping[str, Sequence[int | None]] | None,
    example: Any,
    *,
    measure: bool = False,
    whole_step: bool = False,
    loss: Any = None,
) -> Graph:
    """The annotated graph of a model; its costs are left out where sizes are open and no bytes are asked for."""
    if batch_size is not None:
        batch_size = check_int("batch_size", batch_size)
    if example is not None:
        if input_shapes is not None:
            raise OptionError("give input_shapes or example, not both: either one sets the open dimensions")
        example_batch, input_shapes = _shapes(model, example)
        if batch_size not in (None, example_batch):
            raise OptionError(f"batch_size={batch_size}, but the example is a batch of {example_batch}")
        batch_size = example_batch
    declared = {t.shape[0] for t in keras_graph.functional_of(model).inputs} - {None}
    asked = whole_step or measure
    if asked and batch_size is None and not declared:
        raise OptionError(
            "batch_size is needed where bytes or seconds are compared: tfgc.plan(model, batch_size=32, ...)"
        )
    batch = batch_size or (declared.pop() if declared else NOMINAL_BATCH)
    program = keras_graph.Program(model, batch, input_shapes)
    if not program.graph.sizes_known and not asked:
        return program.graph
    graph = node_costs.annotate(program)
    for node, cost in zip(graph.nodes, graph.costs):
        if cost.obstacle:
            message = f"{node.name!r} cannot be run twice and is planned to be kept: {cost.obstacle}."
            warn(message, NotReplayableWarning)
    if measure:
        graph = timing.timed(program, graph)
    if loss is None and model.compiled and isinstance(model.loss, (str, keras.losses.Loss)):
        loss = model.loss
    if loss is not None and whole_step:
        graph = dataclasses.replace(graph, loss=node_costs.loss_course(graph, loss))
    return dataclasses.replace(graph, whole_step=whole_step)


def warn_of_open_sizes(graph: Graph) -> None:
    """Warn that nothing is recomputed, since the sizes of `graph` are not known, and say how to give them."""
    inputs = {name: spec.shape for name, spec in graph.inputs.items() if spec.open}
    if inputs:
        shapes = ", ".join(f"{name!r} is {shape}" for name, shape in inputs.items())
        given = ", ".join(f"{name!r}: shape" for name in inputs)
        why = f"the model leaves sizes of its inputs open ({shapes})"
        how = f"tfgc.plan(model, batch_size, input_shapes={{{given}}}), shapes without the batch, or example=batch"
        remedy = f"give them: {how}"
    else:
        ref, spec = next((ref, spec) for ref, spec in graph.specs.items() if spec.open)
        why = (
            f"{ref.node!r} makes a tensor of shape {spec.shape}, whose unknown sizes depend on the values in the batch"
        )
        remedy = "give it a fixed size, or apply it to the data before the model"
    warn(
        f"nothing is recomputed: {why}, so no plan is known to need less than keeping all. To save memory {remedy}; "
        "strategy='uniform' recomputes without knowing sizes.",
        OpenSizesWarning,
    )


def per_sample(plan: Plan, batch: int) -> Plan:
    """The plan with bytes and work of one sample in place of `batch` of them."""
    outlook = plan.outlook and dataclasses.replace(
        plan.outlook,
        peak_bytes=_part(plan.outlook.peak_bytes, batch),
        plain_bytes=_part(plan.outlook.plain_bytes, batch),
        floor_bytes=_part(plan.outlook.floor_bytes, batch),
    )
    return dataclasses.replace(plan, segments=_divided(plan.segments, batch), outlook=outlook, batch_size=None)


def _divided(segments: tuple[Segment, ...], batch: int) -> tuple[Segment, ...]:
    return tuple(
        dataclasses.replace(
            s,
            stored_bytes=_part(s.stored_bytes, batch),
            inside_bytes=_part(s.inside_bytes, batch),
            input_bytes=_part(s.input_bytes, batch),
            work=None if s.work is None else s.work / batch,
            inner=s.inner and dataclasses.replace(s.inner, segments=_divided(s.inner.segments, batch)),
        )
        for s in segments
    )


def _part(count: int | None, batch: int) -> Any:
    return None if count is None else count // batch


def fixed_bytes(model: keras.Model, optimizer: keras.Optimizer | str | None = None) -> int:
    """Bytes of weights, other variables and optimizer slots, which stay in memory during all of training.

    Args:
        model: The model.
        optimizer: A `keras.Optimizer` or its name. Default: the one that the model is
            compiled with, or else two slots for each weight, as Adam has.
    """
    weights, trained = _bytes(model.weights), _bytes(model.trainable_variables)
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None) or "adam"
    try:
        chosen: Any = keras.optimizers.get(optimizer)
    except (ValueError, TypeError) as error:
        known = [name for name, kind in vars(keras.optimizers).items() if isinstance(kind, type)]
        raise OptionError(
            f"there is no optimizer {optimizer!r}{did_you_mean(str(optimizer).capitalize(), known)}"
        ) from error
    if chosen.built:
        return weights + _bytes(chosen.variables)
    # A copy, built for one variable, shows how many slots it makes; the user's optimizer stays as it is.
    copy = type(chosen).from_config(chosen.get_config())
    scalars = len(copy.variables)
    variable = keras.Variable(np.zeros((4, 4), "float32"))
    copy.build([variable])
    return weights + round(trained * _bytes(copy.variables[scalars:]) / _bytes([variable]))


def _bytes(variables: Iterable[keras.Variable]) -> int:
    return sum(int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size for v in variables)


def budget_bytes(budget: int | str, graph: Graph | None, fixed: int) -> int:
    """A budget of the whole step, in bytes; a share of the plain step needs the graph."""
    if budget == "auto":
        return int(free_memory.free_bytes() * (1 - MARGIN))
    if isinstance(budget, str) and budget.strip().endswith("%"):
        try:
            share = float(budget.strip()[:-1]) / 100
        except ValueError:
            share = 0
        if graph is None or not 0 < share < float("inf"):
            raise OptionError(f"budget={budget!r}: a share is a positive part of the plain step's peak, such as '60%'")
        baseline = simulator.estimate(graph, Plan.from_cuts(graph, [], strategy="keep_all"), fixed)
        return int(share * baseline.needed_bytes)
    return parse_bytes(budget)


def _shapes(model: keras.Model, example: Any) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Batch size and input shapes of an example batch."""
    inputs = keras_graph.functional_of(model).inputs
    if isinstance(example, dict):
        unknown = [name for name in example if name not in {t.name for t in inputs}]
        if unknown:
            raise OptionError(
                f"example: the model has no input {unknown[0]!r}{did_you_mean(unknown[0], [t.name for t in inputs])}"
            )
        arrays = [example[t.name] for t in inputs]
    else:
        arrays = list(example) if isinstance(example, (tuple, list)) else [example]
        if len(arrays) == 2 and len(inputs) == 1:
            arrays = arrays[:1]
        elif len(arrays) == 2 and isinstance(arrays[0], (tuple, list, dict)):
            return _shapes(model, arrays[0])
    if len(arrays) != len(inputs):
        raise OptionError(f"example: the model has {len(inputs)} inputs, the example {len(arrays)}")
    given = {t.name: _fitting(t, array) for t, array in zip(inputs, arrays) if array is not None}
    batches = {shape[0] for shape in given.values()}
    if len(batches) != 1:
        raise OptionError(f"example: its inputs have different batch sizes: {sorted(batches)}")
    return batches.pop(), {name: shape[1:] for name, shape in given.items()}


def _fitting(tensor: keras.KerasTensor, array: Any) -> tuple[int, ...]:
    """The shape of an array as an input takes it: Keras adds or drops a last dimension of one."""
    shape, rank = tuple(array.shape), len(tensor.shape)
    if len(shape) == rank + 1 and shape[-1] == 1:
        return shape[:-1]
    return (*shape, 1) if len(shape) == rank - 1 and tensor.shape[-1] == 1 else shape
