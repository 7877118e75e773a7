"""Trace a function once, forward and backward, so that both directions can be copied into other graphs.

Python runs once for the first run, the replay and the gradients; equal functions need no other trace. What needs
something of the graph around it (tensors that it closes over, functions in a graph's library, a
`tf.random.Generator`) is not traced here.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import (
    backward_order,
    graph_building,
    graph_copies,
    late_constants,
    operation_seeds,
    private_api,
    shared_constants,
)
from tfgc._pure import obstacles, packed_masks, python_random, random_draws, side_effects, taken_results, taken_shapes
from tfgc._pure.tensor_packing import Packing


class NotCopyableError(Exception):
    """A copy of the traced function would not do the same as the function."""


class TracedCall:
    """A pure function as a graph, of which parts can be copied; raises if a copy would not do the same.

    If it is `selective`, replays take over dear products, and not only small results and masks. `forward` makes the
    tensors of a run of the inputs, then what it drew from hidden state, and then the results that replays take over,
    of which the last ones are `n_shapes` shapes.
    """

    def __init__(self, fn: Callable, packing: Packing, selective: bool = False) -> None:
        self._graph: Any = graph_building.scratch_graph("traced")
        operation_seeds.number_apart(self._graph)
        self._tape = tf.GradientTape()
        self._variables: list[tf.Tensor] = []
        trace = side_effects.Trace(fn, packing, self._stand_in)
        start, context = python_random.state(), private_api.call_context()
        generator, has_drawn = private_api.global_seed(), True
        try:
            recorded = graph_building.recorded()
            with self._graph.as_default(), recorded, self._tape, backward_order.noted_order() as self._chains:
                arguments = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in packing.specs]
                self._tape.watch([x for x in arguments if _is_differentiable(x)])
                with random_draws.alike_in_both_runs(), taken_results.boundaries() as boundaries:
                    trace.run(*arguments)
            self.context_left = private_api.call_context()  # what the function left there
            private_api.set_call_context(context)
            is_seeded, moved = private_api.global_seed() is not generator, python_random.state() != start
            has_drawn = moved and (is_seeded or not side_effects.others_drew(fn, packing))
        finally:
            private_api.set_call_context(context)
            if has_drawn:
                python_random.rewind(start)
                private_api.set_global_seed(generator)
        if has_drawn:
            raise NotCopyableError
        operations = self._graph.get_operations()
        drawing = [op for op in operations if op.type in random_draws.TYPES]
        self.effects = trace.effects(draws=bool(drawing))
        is_closed = obstacles.can_be_copied(self._graph) and not self._graph.captures
        can_run_twice = trace.obstacle is None and obstacles.obstacle(self._graph) is None
        if not is_closed or not can_run_twice or len(self.effects.reads) > len(self._variables):
            raise NotCopyableError
        numbered = operation_seeds.numbered(self._graph, drawing)
        if numbered is None:
            raise NotCopyableError
        self._arguments = [x for i, x in enumerate(arguments) if i not in trace.unread]
        run = trace.scope.outcome(trace.result, [])
        self.run, self._tensors = run.without_tensors(), run.tensors
        self.layouts = packing.without(trace.unread).layouts
        self.shapes = [x.shape for x in self._given]  # of the arguments, then the values of the variables
        results = taken_results.small_results(operations, self._given)
        masks = taken_results.masks(operations)
        if selective:
            results += taken_results.dear_products(operations, self._arguments, [*boundaries, *self._tensors]) + masks
        elif not private_api.in_xla():
            results += filter(packed_masks.can_be_packed, masks)
        tensors = [*self._given, *(tensor for op in operations for tensor in op.outputs)]
        with self._graph.as_default():  # XLA knows all sizes.
            self._shapes = taken_shapes.TakenShapes([] if private_api.in_xla() else tensors)
        self.n_shapes = len(self._shapes.tensors)
        results += self._shapes.tensors
        self._n_forward = len(self._graph.get_operations())
        self.n_draws, self.results = len(drawing), [tf.TensorSpec(t.shape, t.dtype) for t in results]
        self._results = [op.outputs[0] for op in drawing] + results
        made, edges = [*self._tensors, *self._results], shared_constants.drawn_in_time(operations, self._arguments)
        self.forward = graph_copies.Part(self._graph, self._given, made, edges, numbered=numbered)

    def _stand_in(self, variable: keras.Variable) -> tf.Tensor:
        value = graph_building.placeholder_of(variable, self._graph)
        if _is_differentiable(value):
            self._tape.watch(value)
        self._variables.append(value)
        return value

    @property
    def _given(self) -> list[tf.Tensor]:
        return [*self._arguments, *self._variables]

    def backward(
        self, sources: Sequence[int], asked: Sequence[int], unasked: Collection[int] = ()
    ) -> "Gradients | None":
        """What makes the gradients of inputs, by position in arguments and variables; can be asked for once.

        They come from the `asked` differentiable tensors. Nothing waits for those of `unasked` inputs, which may be
        pruned. A copy is given the inputs, draws and results of the first run, and what flows back. None where a copy
        would itself have no gradient, since it holds a `tf.custom_gradient` that cannot be copied, or draws once more.
        """
        try:
            return self._backward(sources, asked, unasked)
        finally:
            del self._graph, self._tape, self._tensors, self._results, self._shapes
            del self._chains, self._arguments, self._variables

    def _backward(self, sources: Sequence[int], asked: Sequence[int], unasked: Collection[int]) -> "Gradients | None":
        targets = [self._tensors[i] for i in self.run.differentiable]
        with self._graph.as_default():
            upstream = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in targets]
            flowing = [[tensors[i] for i in asked] for tensors in (targets, upstream)]
            gradients = self._tape.gradient(flowing[0], [self._given[i] for i in sources], output_gradients=flowing[1])
            late_constants.hold_back(self._graph.get_operations()[self._n_forward :], upstream)
            instead = self._shapes.instead(self._graph.get_operations())
        edges = shared_constants.fence(self._graph.get_operations(), [*self._arguments, *upstream], upstream)
        flat = tf.nest.flatten(gradients, expand_composites=True)
        needed = [g for i, g in zip(sources, gradients) if i not in unasked and g is not None]
        asked_for = tf.nest.flatten(needed, expand_composites=True)
        order = graph_copies.Order(self._edges, asked_for) if self._chains else None
        given = [*self._given, *self._results, *upstream]
        part = graph_copies.Part(self._graph, given, flat, edges, instead=instead, order=order)
        is_copyable = part.customize(self._graph)
        is_copyable &= not operation_seeds.have_seeds(self._graph.get_operations()[self._n_forward :])
        specs = tf.nest.map_structure(lambda x: x if x is None else tf.type_spec_from_value(x), gradients)
        return Gradients(part, specs) if is_copyable else None

    def _edges(self, is_needed: Callable[[tf.Tensor], bool]) -> Iterator[tuple[tf.Tensor, list[tf.Tensor]]]:
        return itertools.chain.from_iterable(chain.edges(is_needed) for chain in self._chains)


class Gradients:
    """What makes gradients in a copy: `tf.Tensor`s, `tf.IndexedSlices` or None."""

    def __init__(self, part: graph_copies.Part, structure: list[Any]) -> None:
        self._part, self._structure = part, structure

    def copy(self, tensors: Sequence[tf.Tensor], name: str) -> list[Any]:
        """The gradients in the graph being built; see `graph_copies.Part.copy`."""
        return tf.nest.pack_sequence_as(self._structure, self._part.copy(tensors, name), expand_composites=True)


def _is_differentiable(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex
