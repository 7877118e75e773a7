"""Read a Keras model into a Graph, and run its nodes by name.

A `Program` is the runnable side of a `Graph`: the same
node names, with the layer and the symbolic arguments behind each. It calls each layer just as `Functional.call` does,
so a node does exactly what it does in the model.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras

from tfgc._core import node_order, text
from tfgc._core.graph import Graph, Node, Ref, Spec
from tfgc._errors import OptionError, did_you_mean
from tfgc._framework import keras_models, tensor_attributes
from tfgc._framework.keras_models import FunctionalGraph
from tfgc._pure import python_random
from tfgc._tracing import functional_graphs, shapes

Shapes = Mapping[str, Sequence[int | None]]


def read(model: keras.Model, batch_size: int | None = None, input_shapes: Shapes | None = None) -> Graph:
    """Read a built Sequential or functional model into a `Graph`.

    Nested models are replaced by their nodes, except where they are called on masked inputs or change the dtype or rank
    of an input. The batch size gives every tensor its true size, `input_shapes`, by name and without the batch, where
    the model leaves dimensions open.
    """
    return Program(model, batch_size, input_shapes).graph


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

    def outputs(self, specs: Mapping[Ref, keras.KerasTensor], trusting: bool) -> list[keras.KerasTensor]:
        """What it makes of inputs of these sizes, as `keras.KerasTensor`s; by what layers declare, if `trusting`."""
        given = {ref: keras_models.in_own_dtype(self.node.operation, specs[ref]) for _, ref in self.sources}
        if tensor_attributes.takes_masks(self.node.operation):
            for ref, tensor in given.items():
                tensor_attributes.set_mask(tensor, tensor_attributes.mask_of(specs[ref]))
        return shapes.outputs(self.node.operation, self.call, given, self.node.outputs, trusting)


class Program:
    """The graph of a model together with what runs its nodes; sizes `seen` in a call stand above declared ones."""

    def __init__(
        self, model: keras.Model, batch_size: int | None = None, input_shapes: Shapes | None = None, seen: bool = False
    ) -> None:
        self.model = model
        self.function = functional_graphs.functional_of(model)
        self.name = model.name
        self._steps: dict[str, _Step] = {}
        self._read: list[tuple[Any, FunctionalGraph]] = [(model, self.function)]
        self._names = {t.name for t in self.function.inputs}
        inputs = {t.name: t for t in self.function.inputs}
        given = input_shapes or {}
        if not isinstance(given, Mapping):
            shapes_of = f"{{{next(iter(inputs))!r}: (128,)}}"
            raise OptionError(f"input_shapes={given!r}: give the shape of each input by its name, as {shapes_of}")
        for name in given:
            if name not in inputs:
                hint = did_you_mean(name, inputs) or f"; it has {', '.join(map(repr, inputs))}"
                raise OptionError(f"input_shapes: the model has no input {name!r}{hint}")
        specs = {Ref(name): shapes.resized(t, batch_size, given.get(name), seen) for name, t in inputs.items()}
        refs = {id(t): Ref(t.name) for t in self.function.inputs}
        self._flatten(self.function, refs, "", None)
        self.outputs = tuple(refs[id(t)] for t in self.function.outputs)
        self._given, self._batch_size = specs, batch_size
        self._known = batch_size is not None or bool(input_shapes)
        self.trusts_layers = True  # Sizes are those that layers declare, where these are known.
        self._size()

    def _size(self) -> None:
        """Read the graph, with the sizes of all tensors."""
        specs, inputs = dict(self._given), [t.name for t in self.function.inputs]
        settled = self._batch_size is not None and all(None not in t.shape for t in specs.values())
        with python_random.streams_put_back():
            for name, step in self._steps.items():
                made = step.outputs(specs, self.trusts_layers) if self._known else step.node.outputs
                pairs = zip(made, step.node.outputs)
                specs.update((Ref(name, i), shapes.masked(t, declared)) for i, (t, declared) in enumerate(pairs))
        sized = {ref: _spec(t, settled) for ref, t in specs.items()}
        masks = {ref: tensor_attributes.mask_of(t) for ref, t in specs.items()}
        # The masks that Keras attaches to tensors.
        self.masks = {ref: _spec(mask) for ref, mask in masks.items() if mask is not None}
        nodes = [self._node(name, sized) for name in self._steps]
        self.graph = Graph(
            node_order.order(nodes, self.outputs, self._pinned()),
            {name: sized[Ref(name)] for name in inputs},
            self.outputs,
            self._batch_size,
        )

    def distrust_layers(self) -> None:
        """Trace what layers make that are not Keras's own, whatever shapes they declare."""
        self.trusts_layers = False
        self._size()

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

    def _node(self, name: str, specs: Mapping[Ref, Spec]) -> Node:
        step = self._steps[name]
        outputs = tuple(specs[Ref(name, i)] for i in range(len(step.node.outputs)))
        inputs = tuple(ref for _, ref in step.sources)
        declared = tuple(_spec(t) for t in step.node.outputs)
        return Node(name, inputs, outputs, type(step.node.operation).__name__, declared)

    def _pinned(self) -> list[tuple[int, int]]:
        """Pairs of steps whose order may matter: they could share state.

        Calls that touch the same layer or variable keep Keras's order, and so do
        all custom layers, which may draw from Keras's global random generator. So does Keras's attention among what
        reads the same tensors, as it takes their masks off.
        """
        last: dict[int | str, int] = {}
        pairs: list[tuple[int, int]] = []
        attention: list[int] = []
        for i, step in enumerate(self._steps.values()):
            operation = step.node.operation
            if not isinstance(operation, keras.Layer):
                continue
            inside = keras_models.layers_inside(operation)
            if any(isinstance(layer, keras.layers.MultiHeadAttention) for layer in inside):
                attention.append(i)
            keys: set[int | str] = set(map(id, [*inside, *operation.non_trainable_variables]))
            if not keras_models.is_keras_own(operation):
                keys.add("custom")
            pairs += [(last[key], i) for key in keys if key in last]
            last.update(dict.fromkeys(keys, i))
        read = [{ref for _, ref in step.sources} for step in self._steps.values()]
        beside = [(i, j) for i in attention for j in range(len(read)) if i != j and read[i] & read[j]]
        return pairs + [(min(pair), max(pair)) for pair in beside]

    @property
    def is_current(self) -> bool:
        """Whether the model, and the nested ones that were flattened, still have the graphs that were read."""
        return all(function.is_still_of(model) for model, function in self._read)

    @property
    def steps(self) -> Iterable[_Step]:
        """Every call of the model, in Keras's order."""
        return self._steps.values()

    def call_of(self, name: str) -> tuple[keras.Operation, tuple[tuple, dict], bool | None]:
        """The layer or op behind a node, its symbolic arguments, and the `training` that it was called with."""
        step = self._steps[name]
        return step.node.operation, (step.node.arguments.args, step.node.arguments.kwargs), step.training

    def masks_of(self, name: str) -> dict[Ref, Spec]:
        """The masks of a node's inputs, if it takes masks; one of several inputs finds them on the tensors alone."""
        step = self._steps[name]
        takes = tensor_attributes.takes_masks(step.node.operation)
        return {ref: self.masks[ref] for _, ref in step.sources if ref in self.masks} if takes else {}

    def layers(self, names: Iterable[str]) -> list[keras.Layer]:
        """The layers that nodes call."""
        called = (self._steps[name].node.operation for name in names)
        return [op for op in called if isinstance(op, keras.Layer)]

    def feed(self, inputs: Any, mask: Any = None) -> dict[Ref, Any]:
        """The table of tensors to start from, as `Functional.call` prepares it."""
        flat = self.function.flat_inputs(inputs)
        if mask is not None:
            for tensor, its_mask in zip(flat, keras.tree.flatten(mask)):
                if its_mask is not None:
                    tensor_attributes.set_mask(tensor, its_mask)
        return {Ref(t.name): x for t, x in zip(self.function.inputs, flat)}

    def run(
        self,
        names: Sequence[str],
        table: dict[Ref, Any],
        training: bool | None = None,
        release: Mapping[str, Iterable[Ref]] | None = None,
        watch: Callable[[str, list], Any] | None = None,
    ) -> None:
        """Run nodes in this order on what they read of `table`, adding their outputs to it.

        After a node `watch(name, outputs)` is called, and what it is to `release` is dropped from the table.
        """
        for name in names:
            step = self._steps[name]
            given = step.training if training is None else training
            made = step.call(keras_models.call_with_training(step.node.operation, training=given), table)
            table.update((Ref(name, i), tensor) for i, tensor in enumerate(made))
            if watch is not None:
                watch(name, made)
            for ref in (release or {}).get(name, ()):
                del table[ref]

    def placeholder(self, ref: Ref, name: str) -> Any:
        """A fresh `keras.Input` for a tensor of the model; one for an input of the model keeps its name."""
        step = self._steps.get(ref.node)
        declared = step.node.outputs[ref.index] if step else next(t for t in self.function.inputs if t.name == ref.node)
        made = keras.Input(batch_shape=declared.shape, dtype=declared.dtype, name=name if step else ref.node)
        if ref in self.masks:
            tensor_attributes.set_mask(made, keras.KerasTensor(self.masks[ref].shape, self.masks[ref].dtype))
        return made

    def collect(self, table: Mapping[Ref, Any]) -> Any:
        """The model's outputs in their structure."""
        return keras_models.unpack_singleton(self.function.structured_outputs([table[ref] for ref in self.outputs]))


def _base_name(operation: keras.Operation) -> str:
    """A layer's name; for an op its kind: Keras renumbers ops when it loads or clones a model."""
    if isinstance(operation, keras.Layer):
        return operation.name
    return "ops." + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(operation).__name__).lower()


def _spec(tensor: keras.KerasTensor, settled: bool = False) -> Spec:
    """The `Spec` of a tensor; if all input sizes are known, a size that is still unknown depends on values."""
    return Spec(tuple(tensor.shape), str(tensor.dtype), settled and None in tensor.shape)
