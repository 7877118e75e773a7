"""What the metrics of a model's outputs need beside the outputs."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.graph import Graph, Ref, Spec
from tfgc._core.tensors import peak_of
from tfgc._costs import gradient_graphs
from tfgc._costs.call_operations import Call
from tfgc._framework import graph_building, keras_models


def metrics(graph: Graph, model: keras.Model) -> Iterator[tuple[Ref, Any]]:
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


def most_bytes(metric: Any, spec: Spec) -> int:
    """Most bytes that a metric needs on top of its output."""
    try:
        known: Any = keras.metrics.get(metric)
    except Exception:  # Keras says so in the first step, and runs code of the user's to make a metric.
        return 0
    states = [v.value for v in known.variables] if isinstance(known, keras.Metric) else []
    for target in targets(spec):
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


def targets(spec: Spec) -> list[tuple]:
    """Dtype and shape of the targets that an output may have: its own, or one integer for its last dimension."""
    return [(spec.dtype, spec.shape), ("int32", spec.shape[:-1])]
