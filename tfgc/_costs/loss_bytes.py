"""What the losses and metrics of a model's outputs need beside the outputs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfgc._core.graph import Graph, Ref, Spec
from tfgc._core.tensors import peak_of
from tfgc._costs import gradient_graphs
from tfgc._costs.call_operations import Call
from tfgc._costs.tensor_buffers import tensor_bytes
from tfgc._errors import UnsupportedModelError, one_line
from tfgc._framework import graph_building, keras_models, keras_names, tensor_attributes
from tfgc._framework.memory_errors import OUT_OF_MEMORY


def courses(
    graph: Graph, model: keras.Model, losses: Sequence[Sequence[Any]], are_compiled: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The byte traces of losses, metrics and gradients of the losses, for `Graph.loss` and `Graph.eager_loss`.

    Targets have the shape of their output, or are one integer in place of its last dimension. `losses` are names,
    functions and `keras.Loss` objects for each output; one that `compile` was given and that needs other targets is
    left out.
    """
    metrics = [] if graph.xla else list(_metrics(graph, model))
    beside = sum(_bytes(metric, graph.specs[ref]) for ref, metric in metrics)
    measured = {ref for ref, _ in metrics}

    def course(eager: bool) -> tuple[int, ...]:
        counts: tuple[int, ...] = ()
        for ref, several in zip(graph.outputs, losses):
            output = _Output(graph.specs[ref], _logits_behind(graph, ref), graph.xla, eager, eager or ref in measured)
            for loss in several:
                found = keras_names.loss(loss)
                wraps = are_compiled and not isinstance(found, keras.Loss)
                counts += _of_output(_Compiled(found) if wraps else found, output, are_compiled)
        return (beside, *counts, -beside) if beside else counts

    return course(eager=False), course(eager=True)


class _Compiled(keras.Loss):
    """A function as `compile` takes it: behind outputs that have to be cast Keras finds no logits."""

    def __init__(self, function: Callable) -> None:
        super().__init__(name="loss")
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The values of the function."""
        return self.function(y_true, y_pred)


class _Output(NamedTuple):
    """An output of the model, and where its loss runs."""

    spec: Spec
    logits: str | None  # how Keras's crossentropies find the logits behind it
    xla: bool
    eager: bool
    is_read: bool  # whether it is there, too, where the loss reads its logits alone


def _logits_behind(graph: Graph, ref: Ref) -> str | None:
    """How Keras's crossentropies find the logits behind a tensor, as in `Cost.logits`."""
    while ref.node in graph.position:
        cost = graph.costs[graph.position[ref.node]]
        found = cost.logits[ref.index] if cost.logits else None
        view = cost.aliases[ref.index] if cost.aliases else None
        if found != "" or view is None:
            return found or None
        ref = view
    return None


def _of_output(loss: Callable, output: _Output, may_fail: bool) -> tuple[int, ...]:
    spec = output.spec
    failed: Any = None
    for target in _targets(spec):
        try:
            return _course_of(loss, output, target)
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


def _course_of(loss: Any, output: _Output, target: tuple) -> tuple[int, ...]:
    # An operation that Keras could look at is there in graphs alone.
    is_hidden = output.eager and output.logits in tensor_attributes.ACTIVATIONS
    call = None if is_hidden or output.logits is None else _traced(loss, output, target, output.logits)
    # The output then stands for its logits.
    more = tensor_bytes(call.inputs[0]) if call and output.is_read else 0
    call = call or _traced(loss, output, target)
    assert call is not None
    cost = gradient_graphs.footprint(call, xla=output.xla).cost
    # The gradient does not wait for the value, so what the value alone needs is still there, and what it still reads is
    # not overwritten.
    alone = tuple(count for count in cost.forward_saving_trace if count > 0)
    beside = (0 if output.xla else gradient_graphs.shared_bytes(call)) + more
    return alone + ((beside, *cost.backward_trace, -beside) if beside else cost.backward_trace)


def _traced(loss: Any, output: _Output, target: tuple, found_by: str | None = None) -> Call | None:
    """A loss with its gradient; None if it does not read the logits alone that Keras would find in this way."""
    spec = output.spec
    with graph_building.scratch_graph("loss").as_default() as graph:
        logits = tf.compat.v1.placeholder(spec.dtype, spec.shape)
        predicted = tensor_attributes.with_logits(logits, found_by) if found_by else logits
        given = tf.compat.v1.placeholder(*target)
        with tf.GradientTape() as tape:
            # Operation by operation, gradients of targets are computed, too.
            sources = [logits, given] if output.eager and given.dtype.is_floating else [logits]
            tape.watch(sources)
            value = tf.reduce_mean(loss(given, predicted))
        if predicted is not logits and predicted.consumers():
            return None
        upstream = tf.compat.v1.placeholder(value.dtype, value.shape)
        gradients = tape.gradient(value, sources, output_gradients=upstream)
    return Call(graph, [logits, given], [], [value], [upstream], gradients, sources)


def _metrics(graph: Graph, model: keras.Model) -> Iterator[tuple[Ref, Any]]:
    """Each metric of the outputs. TensorFlow computes them while it computes the loss.

    Those that read more than a target and an output are left out.
    """
    losses = keras_models.compiled_losses(model)
    for wanted in keras_models.compiled_metrics(model):
        for ref, chosen, several in zip(graph.outputs, keras_models.of_outputs(model, wanted), losses):
            yield from ((ref, _named(metric, next(iter(several), None), graph.specs[ref])) for metric in chosen)


def _named(metric: Any, loss: Any, spec: Spec) -> Any:
    """What Keras takes `accuracy` for, in any case of its letters."""
    if not isinstance(metric, str) or metric.lower() not in ("accuracy", "acc"):
        return metric
    if not spec.shape or spec.shape[-1] == 1:
        return "binary_accuracy"
    words = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    return "sparse_categorical_accuracy" if words.lower().startswith("sparse") else "categorical_accuracy"


def _bytes(metric: Any, spec: Spec) -> int:
    """Most bytes that a metric needs on top of its output."""
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
