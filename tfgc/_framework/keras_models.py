"""How Keras stores functional graphs, and what its layers keep about their calls."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework.internals import functional
from tfgc._framework.versions import attribute

# Where an enabled layer keeps methods that a user had put on the object. Neither Keras nor tfgc takes it for a setting.
BEFORE = "_self_methods_before"
# The attribute with what graphs in which a layer was recomputed need for gradients, by graph.
TRACES = "_self_traces"

call_with_training = functional.operation_fn
unpack_singleton = functional.unpack_singleton


def runs_graph(model: Any) -> bool:
    """Whether a model runs a graph of Keras's, even if that is not built yet, and no `call` that a user put on it."""
    if not has_graph(model):
        return False
    own = vars(model).get("call")
    if is_patched(own):
        own = vars(model).get(BEFORE, {}).get("call")
    return own is None or getattr(own, "runs_the_graph", False)


def has_graph(model: Any) -> bool:
    """Whether the class of a model runs a graph of Keras's."""
    kind = next((kind for kind in (keras.Sequential, functional.Functional) if isinstance(model, kind)), None)
    return kind is not None and type(model).call is kind.call


def is_patched(method: Any) -> bool:
    """Whether tfgc put a method there in place of another."""
    return getattr(method, "is_patched_call", False)


def functional_graph(model: Any) -> "FunctionalGraph | None":
    """The functional graph of a model; None if it has none."""
    function = _function_of(model) if runs_graph(model) else None
    return None if function is None else FunctionalGraph(function)


def _function_of(model: Any) -> Any:
    """Keras's own object for the graph of a model, another one once the graph has changed; None if it has none."""
    if not has_graph(model):
        return None
    return attribute(model, "_functional") if isinstance(model, keras.Sequential) else model


class FunctionalGraph:
    """The nodes of a functional model, and its symbolic inputs and outputs: flat ones, and `input` in its structure."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.inputs: list[keras.KerasTensor] = function.inputs
        self.outputs: list[keras.KerasTensor] = function.outputs
        self.input: Any = function.input

    def is_still_of(self, model: Any) -> bool:
        """Whether this is the graph that a model has now."""
        return self._function is _function_of(model)

    def calls(self) -> Iterator[Any]:
        """The node of each call, in Keras's order."""
        by_depth = attribute(self._function, "_nodes_by_depth")
        for depth in sorted(by_depth, reverse=True):
            yield from (node for node in by_depth[depth] if node.operation and not node.is_input)

    def structured_inputs(self, tensors: Sequence[Any]) -> Any:
        """Tensors in the structure of the inputs."""
        return keras.tree.pack_sequence_as(self.input, tensors)

    def structured_outputs(self, tensors: Sequence[Any]) -> Any:
        """Tensors in the structure of the outputs."""
        return keras.tree.pack_sequence_as(self._function.output, tensors)


def layers_inside(layer: keras.Layer) -> list[keras.Layer]:
    """A layer and all layers in it, at any depth."""
    return list(attribute(layer, "_flatten_layers")())


def held_layers(layer: keras.Layer) -> list[keras.Layer]:
    """The layers that a layer holds directly, in the order in which its code made them its own."""
    return list(attribute(layer, "_layers"))


def has_own_call(model: keras.Model) -> bool:
    """Whether a model can be called: it has a graph of nodes, or its class says what a call does."""
    return has_graph(model) or type(model).call is not keras.Model.call


def has_own_step(model: Any) -> bool:
    """Whether the class of a model defines how it trains."""
    return type(model).train_step is not keras.Model.train_step


def is_built(model: keras.Model) -> bool:
    """Whether all layers of a model have their variables."""
    return all(layer.built for layer in layers_inside(model))


def has_replicas(model: keras.Model) -> bool:
    """Whether a `tf.distribute.Strategy` keeps the variables of a model."""
    return any(isinstance(variable.value, tf.distribute.DistributedValues) for variable in model.variables)


def node_lists(layer: keras.Operation) -> tuple[list[Any], list[Any]]:
    """The nodes that lead into a layer's calls and out of them, as Keras keeps them."""
    return attribute(layer, "_inbound_nodes"), attribute(layer, "_outbound_nodes")


def compiled_metrics(model: keras.Model) -> list[Any]:
    """What a model is compiled with as `metrics` and as `weighted_metrics`, where it is."""
    made = attribute(model, "_compile_metrics") if model.compiled else None
    return [] if made is None else [attribute(made, "_user_metrics"), attribute(made, "_user_weighted_metrics")]


def compiled_losses(model: keras.Model) -> list[Any]:
    """The loss of each output that a model is compiled with: given by name or key, in order, or the same for all."""
    given = model.loss
    names = getattr(model, "output_names", None) or [model.layers[-1].name]  # a Sequential has none
    chosen = [given] * len(names)
    if len(names) > 1 and isinstance(given, dict):
        graph = functional_graph(model)
        keys = graph.structured_outputs(names) if graph else {}
        keyed = {name: given.get(key) for key, name in keys.items() if key in given} if isinstance(keys, dict) else {}
        chosen = [keyed.get(name, given.get(name)) for name in names]
    elif len(names) > 1 and isinstance(given, list | tuple):
        chosen = next((list(form) for form in (given, keras.tree.flatten(given)) if len(form) == len(names)), chosen)
    return [next((one for one in keras.tree.flatten(choice) if one is not None), None) for choice in chosen]
