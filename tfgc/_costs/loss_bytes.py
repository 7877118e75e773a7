"""What the losses and metrics of a model's outputs need beside the outputs."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.graph import Graph, Spec
from tfgc._core.tensors import peak_of
from tfgc._costs import gradient_graphs
from tfgc._costs.call_operations import Call
from tfgc._errors import UnsupportedModelError, one_line
from tfgc._framework import graph_building, keras_models, keras_names
from tfgc._framework.memory_errors import OUT_OF_MEMORY


def loss_course(graph: Graph, losses: Sequence[Sequence[Any]], are_compiled: bool = False) -> tuple[int, ...]:
    """The byte trace of losses and their gradients, for `Graph.loss`.

    Targets have the shape of their output, or are one integer in place of its last dimension. `losses` are names,
    functions and `keras.Loss` objects for each output; one that `compile` was given and that needs other targets is
    left out.
    """
    course: tuple[int, ...] = ()
    for ref, several in zip(graph.outputs, losses):
        for loss in several:
            course += _of_output(keras_names.loss(loss), graph.specs[ref], graph.xla, are_compiled)
    return course


def _of_output(loss: Callable, spec: Spec, xla: bool, may_fail: bool) -> tuple[int, ...]:
    failed: Any = None
    for target in _targets(spec):
        try:
            return _course_of(loss, spec, target, xla)
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # The loss may be the user's code.
            failed = failed or error
    if may_fail:
        return ()
    raise UnsupportedModelError(
        f"loss={loss!r} cannot be computed from an output of shape {spec.shape} and targets of that shape, or one "
        f"integer in place of its last dimension ({one_line(failed)}). Compile the model with it, or leave loss out: "
        "what it needs is then not counted"
    ) from failed


def _targets(spec: Spec) -> list[tuple]:
    """Dtype and shape of the targets that an output may have: its own, or one integer for its last dimension."""
    return [(spec.dtype, spec.shape), ("int32", spec.shape[:-1])]


def _course_of(loss: Any, spec: Spec, target: tuple, xla: bool) -> tuple[int, ...]:
    with graph_building.scratch_graph("loss").as_default() as graph:
        predicted = tf.compat.v1.placeholder(spec.dtype, spec.shape)
        given = tf.compat.v1.placeholder(*target)
        with tf.GradientTape() as tape:
            tape.watch(predicted)
            value = tf.reduce_mean(loss(given, predicted))
        upstream = tf.compat.v1.placeholder(value.dtype, value.shape)
        gradients = [tape.gradient(value, predicted, output_gradients=upstream)]
    call = Call(graph, [predicted, given], [], [value], [upstream], gradients, [predicted])
    cost = gradient_graphs.footprint(call, xla=xla).cost
    # The gradient does not wait for the value, so what the value alone needs is still there, and what it still reads is
    # not overwritten.
    alone = tuple(count for count in cost.forward_saving_trace if count > 0)
    shared = 0 if xla else gradient_graphs.shared_bytes(call)
    return alone + ((shared, *cost.backward_trace, -shared) if shared else cost.backward_trace)


def metric_bytes(graph: Graph, model: keras.Model) -> int:
    """Most bytes that the metrics of a model's outputs need while its loss is computed, on top of the outputs.

    TensorFlow runs both at once. Metrics that read more than a target and an output are left out.
    """
    total, losses = 0, keras_models.compiled_losses(model)
    for wanted in keras_models.compiled_metrics(model):
        for ref, chosen, several in zip(graph.outputs, keras_models.of_outputs(model, wanted), losses):
            spec, loss = graph.specs[ref], next(iter(several), None)
            total += sum(_bytes(_named(metric, loss, spec), spec) for metric in chosen)
    return total


def _named(metric: Any, loss: Any, spec: Spec) -> Any:
    """What Keras takes `accuracy` for, in any case of its letters."""
    if not isinstance(metric, str) or metric.lower() not in ("accuracy", "acc"):
        return metric
    if not spec.shape or spec.shape[-1] == 1:
        return "binary_accuracy"
    words = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    return "sparse_categorical_accuracy" if words.lower().startswith("sparse") else "categorical_accuracy"


def _bytes(metric: Any, spec: Spec) -> int:
    try:
        known: Any = keras.metrics.get(metric)
    except Exception:  # Keras says so in the first step, and runs code of the user's to make a metric.
        return 0
    states = [v.value for v in known.variables] if isinstance(known, keras.Metric) else []
    for target in _targets(spec):
        with graph_building.scratch_graph("metric").as_default() as graph:
            given, predicted = tf.compat.v1.placeholder(*target), tf.compat.v1.placeholder(spec.dtype, spec.shape)
            before = [tf.compat.v1.placeholder(state.dtype, state.shape) for state in states]
            try:
                if isinstance(known, keras.Metric):
                    made = known.stateless_update_state(before, given, predicted)
                else:
                    made = known(given, predicted)
            except Exception:  # the metric may be the user's code
                continue
        inputs, outputs = [predicted, given, *before], tf.nest.flatten(made)
        return peak_of(gradient_graphs.footprint(Call(graph, inputs, [], outputs, [], [], [])).cost.forward_trace)
    return 0
