"""Read a Keras model into a Graph, and run its nodes by name.

A `Program` is the runnable side of a `Graph`: the same
node names, with the layer and the symbolic arguments behind each. It calls each layer just as `Functional.call` does,
so a node does exactly what it does in the model.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from tfgc._core import text
from tfgc._core.graph import Graph, Node, Ref, Spec
from tfgc._framework import keras_models, tensor_attributes
from tfgc._framework.keras_models import FunctionalGraph
from tfgc._tracing import functional_graphs


@dataclasses.dataclass(frozen=True)
class _Step:
    """One node's call: the layer, its symbolic arguments, and their `Ref`s."""

    node: Any
    sources: tuple[tuple[int, Ref], ...]
    training: bool | None

    def call(self, function: Callable, table: Mapping[Ref, Any]) -> list[Any]:
        """Call a function in place of the layer, on tensors of a table."""
        filled = {key: table[ref] for key, ref in self.sources}
        args, kwargs = self.node.arguments.fill_in(filled)
        return keras.tree.flatten(function(*args, **kwargs))


class Program:
    """The graph of a model, with the sizes that it declares, together with what runs its nodes.

    Nested models are replaced by their nodes, except where they are called on masked inputs or change the dtype or rank
    of an input.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.function = functional_graphs.functional_of(model)
        self.name = model.name
        self._steps: dict[str, _Step] = {}
        self._read: list[tuple[Any, FunctionalGraph]] = [(model, self.function)]
        self._names = {t.name for t in self.function.inputs}
        refs = {id(t): Ref(t.name) for t in self.function.inputs}
        self._flatten(self.function, refs, "", None)
        self.outputs = tuple(refs[id(t)] for t in self.function.outputs)
        inputs = {t.name: _spec(t) for t in self.function.inputs}
        self.graph = Graph(tuple(map(self._node, self._steps)), inputs, self.outputs)

    def _flatten(self, function: FunctionalGraph, refs: dict[int, Ref], path: str, training: bool | None) -> None:
        """Add a step for each call in `function`, in Keras's order; fill `refs`."""
        for node in function.calls():
            name = text.unused(path + _base_name(node.operation), self._names)
            self._names.add(name)
            inner = functional_graphs.flattenable(node)
            if inner is None:
                sources = tuple((id(t), refs[id(t)]) for t in node.input_tensors)
                self._steps[name] = _Step(node, sources, training)
                refs.update((id(t), Ref(name, i)) for i, t in enumerate(node.outputs))
                continue
            self._read.append((node.operation, inner))
            given = node.arguments.kwargs.get("training")
            inside = {id(t): refs[id(outer)] for t, outer in zip(inner.inputs, node.input_tensors)}
            self._flatten(inner, inside, f"{name}/", training if given is None else given)
            refs.update((id(t), inside[id(made)]) for t, made in zip(node.outputs, inner.outputs))

    def _node(self, name: str) -> Node:
        step = self._steps[name]
        inputs, operation = tuple(ref for _, ref in step.sources), step.node.operation
        return Node(name, inputs, tuple(map(_spec, step.node.outputs)), type(operation).__name__)

    @property
    def is_current(self) -> bool:
        """Whether the model, and the nested ones that were flattened, still have the graphs that were read."""
        return all(function.is_still_of(model) for model, function in self._read)

    @property
    def operations(self) -> dict[str, keras.Operation]:
        """The layer or op behind each node."""
        return {name: step.node.operation for name, step in self._steps.items()}

    def run(self, names: Sequence[str], table: dict[Ref, Any]) -> None:
        """Run nodes in this order on what they read of `table`, adding their outputs to it."""
        for name in names:
            step = self._steps[name]
            made = step.call(keras_models.call_with_training(step.node.operation, training=step.training), table)
            table.update((Ref(name, i), tensor) for i, tensor in enumerate(made))

    def placeholder(self, ref: Ref, name: str) -> Any:
        """A fresh `keras.Input` for a tensor of the model; one for an input of the model keeps its name."""
        step = self._steps.get(ref.node)
        declared = step.node.outputs[ref.index] if step else next(t for t in self.function.inputs if t.name == ref.node)
        made = keras.Input(batch_shape=declared.shape, dtype=declared.dtype, name=name if step else ref.node)
        if (mask := tensor_attributes.mask_of(declared)) is not None:
            tensor_attributes.set_mask(made, keras.KerasTensor(mask.shape, keras.backend.standardize_dtype(mask.dtype)))
        return made


def _base_name(operation: keras.Operation) -> str:
    """A layer's name; for an op its kind: Keras renumbers ops when it loads or clones a model."""
    if isinstance(operation, keras.Layer):
        return operation.name
    return "ops." + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(operation).__name__).lower()


def _spec(tensor: keras.KerasTensor) -> Spec:
    return Spec(tuple(tensor.shape), str(tensor.dtype))
