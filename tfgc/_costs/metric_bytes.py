"""What the metrics that a model is compiled with need while its loss is computed: TensorFlow runs both at once."""

from typing import Any

import keras
import tensorflow as tf

from tfgc._core.graph import Graph, Spec
from tfgc._core.tensors import peak_of
from tfgc._costs import gradient_graphs
from tfgc._costs.call_operations import Call
from tfgc._framework import graph_building, keras_models


def metric_bytes(graph: Graph, model: keras.Model) -> int:
    """Most bytes that the metrics of a model's outputs need, on top of the outputs.

    Metrics that read more than a target and an output are left out.

    Args:
        graph: The graph of the model.
        model: The model.
    """
    total, losses = 0, keras_models.compiled_losses(model)
    for wanted in keras_models.compiled_metrics(model):
        for ref, chosen, several in zip(graph.outputs, keras_models.of_outputs(model, wanted), losses):
            spec, loss = graph.specs[ref], next(iter(several), None)
            total += sum(_bytes(_named(metric, loss, spec), spec) for metric in chosen)
    return total


def _named(metric: Any, loss: Any, spec: Spec) -> Any:
    """What Keras takes `accuracy` for."""
    if metric not in ("accuracy", "acc"):
        return metric
    if not spec.shape or spec.shape[-1] == 1:
        return "binary_accuracy"
    words = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    return "sparse_categorical_accuracy" if words.lower().startswith("sparse") else "categorical_accuracy"


def _bytes(metric: Any, spec: Spec) -> int:
    known: Any = keras.metrics.get(metric)
    states = [v.value for v in known.variables] if isinstance(known, keras.Metric) else []
    for target in ((spec.dtype, spec.shape), ("int32", spec.shape[:-1])):
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
