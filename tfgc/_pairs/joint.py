"""A function and its gradients, traced as one step.

The upstream gradients are placeholders in the graph of the trace, so that one trace is enough. What the function closes
over and a tape records is an argument, too.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfgc._framework import added_losses, graph_building, keras_state, operation_seeds, private_api, python_random
from tfgc._framework.tensor_attributes import masked
from tfgc._pairs.tensor_packing import Packing
from tfgc._step import gradient_calls, layer_spans
from tfgc._step.trace import Trace


class Source(NamedTuple):
    """What gradients flow to: an argument by its position, or a variable."""

    position: int
    variable: Any = None


class Joint:
    """One trace of a function and its gradients, by what the tapes around the call record, as they trace plain code.

    Args:
        fn: The function.
        packing: The structure of its arguments.
        specs: Of their tensors.
        flows: For each of their tensors whether gradients flow to it.
        xla: Whether XLA will compile it: gradients of branches are others there.
        numbers: Of the operations that draw where it is called.
        outer: Tensors that it closes over and gradients flow to.
        watched: The variables that gradients flow to. Default: those that train.

    Attributes:
        packing: The structure of what the function returns.
        losses: The layer that added each loss.
        made: The symbolic tensors that it returns, then the losses.
        unchanged: For each of these that is an argument its position among them.
        through: Positions of those that gradients come from.
        watched: The variables among what gradients flow to.
        sources: What gradients flow to.
        captured: Tensors that it closes over, but for variables.
        context_left: What Keras's call context holds behind it: a `training` that it gives a layer stays there.
        unmasked: Positions of flat arguments that it takes the mask off.
        unsupported: Why it cannot run as functions, or None.
    """

    def __init__(
        self,
        fn: Callable,
        packing: Packing,
        specs: Sequence[tf.TensorSpec],
        flows: Sequence[bool],
        xla: bool,
        numbers: operation_seeds.Numbers,
        outer: Sequence[tf.Tensor] = (),
        watched: Sequence[Any] | None = None,
    ) -> None:
        self._fn, self._packing, self._outer, self._watched = fn, packing, outer, watched
        self._numbers = numbers
        self._flows = [*flows, *(True for _ in outer)]
        self.losses, self.captured = list[keras.Layer](), list[tf.Tensor]()
        self.unmasked: tuple[int, ...] = ()
        self.specs = [*specs, *(tf.TensorSpec(t.shape, t.dtype) for t in outer)]
        self.count = len(self.specs)
        start, swallowed = python_random.state(), contextlib.suppress(_CompiledCallError)
        for self._is_persistent in (False, True):  # where it is, loops store what gradients of their gradients read
            with gradient_calls.noted() as gradients, layer_spans.noted() as layers, swallowed:
                traced = tf.function(self._run, autograph=False, jit_compile=xla or None)
                self.function = traced.get_concrete_function(*self.specs)
                self._noted = gradients, layers
                break
            python_random.rewind(start)
        self._graph = self.function.graph
        self._places = {tuple(self.through): len(self.made)}

    def _run(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        count = len(self._packing.specs)
        stand_ins = {id(t): stand_in for t, stand_in in zip(self._outer, tensors[count:])}
        self.captured.clear()
        _local.is_here = True
        watches = self._watched is None
        self._tape: Any = tf.GradientTape(persistent=self._is_persistent, watch_accessed_variables=watches)
        with (
            self._tape,
            added_losses.losses_noted() as losses,
            graph_building.captures_replaced(stand_ins, self.captured),
            self._numbers.continued(),
        ):
            self._tape.watch([t for t, flows in zip(tensors, self._flows) if flows and is_differentiable(t)])
            self._tape.watch(self._watched or [])
            args, kwargs = given = self._packing.unpack(tensors[:count])
            masked_before = masked(given)
            result = self._fn(*args, **kwargs)
        if not (self._is_persistent or private_api.in_xla()) and _calls_compiled():
            raise _CompiledCallError
        self.context_left = keras_state.call_context()
        self.losses = [layer for layer, _ in losses]
        self.unmasked = tuple(sorted({*masked_before} - {*masked(given)}))
        self.packing = Packing(result, made=True)
        self.unsupported = self._packing.unsupported or self.packing.unsupported
        self.made = [*self.packing.take_tensors(), *(loss for _, loss in losses)]
        places = {id(t): k for k, t in enumerate(tensors)}
        self.unchanged = {i: places[id(t)] for i, t in enumerate(self.made) if id(t) in places}
        self.through = [i for i, t in enumerate(self.made) if is_differentiable(t) and i not in self.unchanged]
        self.watched = list(self._tape.watched_variables() if self._watched is None else self._watched)
        self.sources = [Source(i) for i, t in enumerate(tensors) if self._flows[i] and is_differentiable(t)]
        self.sources += [Source(-1, v) for v in self.watched]
        self._inputs = tensors
        self._asked: dict[tuple[int, ...], _Gradients] = {}
        return [*self.made, *self.of(tuple(self.through)).flat]

    def of(self, through: tuple[int, ...]) -> "_Gradients":
        """The gradients of some of what the function returns; more operations of the same graph."""
        if through not in self._asked:
            made = [self.made[i] for i in through]
            upstream = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in made]
            sources = [self._inputs[s.position] if s.variable is None else s.variable for s in self.sources]
            found: Any = [None] * len(sources)
            if made and sources and self._tape is not None:
                found, self._tape = self._tape.gradient(made, sources, upstream), None
            elif made and sources:
                sources = [self._graph.capture(s.handle) if isinstance(s, tf.Variable) else s for s in sources]
                found = tf.gradients(made, sources, upstream)
            self._asked[through] = _Gradients(upstream, found)
        return self._asked[through]

    def flat(self, through: tuple[int, ...]) -> tuple["_Gradients", int]:
        """The same gradients, and where they begin among the outputs of the graph."""
        if through not in self._places:
            with self._graph.as_default():
                found = self.of(through)
                self._places[through] = len(self._graph.outputs)
                self._graph.outputs += [tf.identity(t) for t in found.flat]
        return self.of(through), self._places[through]

    def leads(self, by: Sequence[int], of: Sequence[int]) -> bool:
        """Whether gradients of some results flow to others."""
        with self._graph.as_default():
            found = tf.gradients([self.made[i] for i in of], [self.made[i] for i in by])
        return any(gradient is not None for gradient in found)

    @property
    def variables(self) -> list[tf.Variable]:
        """All that it reads or writes."""
        return list(self.function.variables)

    @property
    def forward(self) -> list[tf.Operation]:
        """The operations before those of gradients."""
        upstream = self.of(tuple(self.through)).upstream
        operations: list[tf.Operation] = self._graph.get_operations()
        return operations[: operations.index(upstream[0].op)] if upstream else operations

    def trace(self, every: bool) -> Trace:
        """The trace as data, with all gradients that were asked for by now; every call inlined or not."""
        return Trace(self.function, self._noted, (), None, every)


def is_here() -> bool:
    """Whether this thread traces a joint, so that what runs here is a part of that."""
    return getattr(_local, "is_here", False)


_local = threading.local()


def is_differentiable(tensor: Any) -> bool:
    """Whether gradients can flow through a tensor or a variable."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex


class _CompiledCallError(Exception):
    """The code calls what XLA compiles: gradients of branches there fail in a tf.function, but by a persistent tape."""


def _calls_compiled() -> bool:
    graph: Any = tf.compat.v1.get_default_graph()
    return any("Call" in op.type and op.node_def.attr["_XlaMustCompile"].b for op in graph.get_operations())


class _Gradients:
    """Gradients of all sources; `flat` are the tensors that they consist of, `parts` says of how many each does."""

    def __init__(self, upstream: Sequence[tf.Tensor], found: Sequence[Any]) -> None:
        self.upstream = upstream
        parts = [[] if g is None else [g] for g in found]
        for k, g in enumerate(found):
            if isinstance(g, tf.IndexedSlices):
                parts[k] = [g.values, g.indices, g.dense_shape]
        self.parts, self.flat = list(map(len, parts)), [t for each in parts for t in each]
