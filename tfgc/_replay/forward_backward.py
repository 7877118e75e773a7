"""The two directions of a recomputed function: run it, and run it again for gradients.

Invariant: the second run sees the tensors, variable values and surroundings of the first,
starts no earlier than the gradient that asks for it, and is not merged with the
first by Grappler or XLA.
"""

import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._error_texts import one_line
from tfgc._errors import ReplayMismatchError
from tfgc._framework import (
    backward_order,
    concrete_functions,
    function_gradients,
    graph_building,
    operation_seeds,
    private_api,
    weight_gradients,
)
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._framework.surroundings import Surroundings
from tfgc._pure import functional, python_random, random_draws, side_effects, tensor_packing
from tfgc._replay.fence import fence, started, waiting, waiting_for_all
from tfgc._replay.two_runs import AskedOutputs, FirstRun, Gradients, Reached, TwoRuns

Tensors: TypeAlias = list[tf.Tensor]
# Shapes whose trace is found without asking TensorFlow, and sets of inputs that gradients are asked for.
_MOST_SHAPES, _MOST_SETS = 256, 16


class Recomputation(TwoRuns):
    """Both directions of a block, for one structure of arguments.

    The second run calls `replay_fn`, the same function with parts that are recomputed in turn, if there is one.
    """

    def __init__(
        self,
        fn: Callable,
        replay_fn: Callable | None,
        packing: tensor_packing.Packing,
        effects: side_effects.Effects,
        surroundings: Surroundings,
        name: str,
    ) -> None:
        super().__init__(effects, surroundings, name)
        self._fn = fn
        self._replay_fn = replay_fn or fn
        self._packing = packing.without(effects.unread)
        self._start: Any = None

    def forward(self, inputs: list[tf.Tensor]) -> functional.Run:
        self._start = python_random.state() if self.effects.chooses else None
        with backward_order.unordered_backward(), started(inputs[: len(self._packing.specs)]):
            return self._run(self._fn, inputs, random_draws.noted if self.effects.draws else contextlib.nullcontext)

    def _run(self, fn: Callable, inputs: list[tf.Tensor], draws: Callable) -> functional.Run:
        n = len(self._packing.specs)
        return functional.run(fn, self._packing, inputs[:n], self.effects.reads, inputs[n:], draws)

    def backward(self, first: FirstRun, upstream: Sequence[tf.Tensor]) -> Gradients:
        n, inputs = len(self._packing.specs), first.inputs
        chosen = contextlib.nullcontext() if self._start is None else python_random.drawn_from(self._start)
        ordered = backward_order.sequential_backward()
        with self.surroundings.reentered(), chosen, fence(upstream, first.awaited) as wait, ordered as needed:
            held = waiting(inputs, n, wait, self._packing.layouts)
            captured = [graph_building.capture(t) for t in self.effects.captured]
            drawn = [graph_building.capture(t) for t in first.draws]
            with tf.GradientTape() as tape:
                asked = [held[i] for i in first.sources] + captured
                tape.watch([*asked, *(v for v in self.effects.variables if v.dtype.is_floating or v.dtype.is_complex)])
                again = self._run_again(graph_building.with_own_gradients(held, first.sources), drawn)
            self._check(first.run, again)
            gradients = tape.gradient(
                first.of_asked([again.tensors[i] for i in first.run.differentiable]),
                asked + list(self.effects.variables),
                output_gradients=waiting_for_all(first.of_asked(upstream), held, wait),
            )
            doubtful = [i in first.doubtful for i in first.sources]
            flowing = [g for g, is_doubtful in itertools.zip_longest(gradients, doubtful) if not is_doubtful]
            needed += [t for t in tf.nest.flatten([flowing, again.checksums], expand_composites=True) if t is not None]
            return gradients, again.checksums

    def _run_again(self, inputs: list[tf.Tensor], drawn: list[tf.Tensor]) -> functional.Run:
        def draws(_: list) -> contextlib.AbstractContextManager:
            return random_draws.handed_in(drawn, self.name) if drawn else contextlib.nullcontext()

        try:
            return self._run(self._replay_fn, inputs, draws)
        except functional.StaleEffectsError as error:
            path = one_line(error).removeprefix(f"{type(error).__name__}: ")
            raise ReplayMismatchError(
                f"the second run of {self.name} reads the variable {path}, which the first did not. "
                f"{random_draws.REPEATABLE}"
            ) from None

    def _check(self, first: functional.Run, again: functional.Run) -> None:
        """Compare shapes and dtypes: layer by layer where checksums were recorded, then the results."""
        layers = [(name, [spec]) for name, spec in first.labels], [(name, [spec]) for name, spec in again.labels]
        results = ("its results", first.specs), ("its results", [tensor_packing.spec_of(t) for t in again.tensors])
        for one, other in [*itertools.zip_longest(*layers, fillvalue=("nothing", [])), results]:
            if one[0] != other[0] or not _alike(one[1], other[1]):
                raise ReplayMismatchError(
                    f"the second run of {self.name} did not repeat the first: {one[0]}: {_describe(one[1])} became "
                    f"{other[0]}: {_describe(other[1])}. {random_draws.REPEATABLE}"
                )


class TracedReplay(TwoRuns):
    """A recomputation that first runs op by op, and again in a `tf.function`.

    Only in a graph can what the first run drew stand for what the second one draws. The
    backward function drops the part of the replay that no gradient reads.
    """

    def __init__(self, recomputation: TwoRuns) -> None:
        super().__init__(recomputation.effects, recomputation.surroundings, recomputation.name)
        self._recomputation = recomputation
        self._backward: RecentlyUsed[tuple, _ConcreteCache] = RecentlyUsed(_MOST_SETS)

    def forward(self, inputs: list[tf.Tensor]) -> functional.Run:
        return self._recomputation.forward(inputs)

    def backward(self, first: FirstRun, upstream: Sequence[tf.Tensor]) -> Gradients:
        # The traced function must not keep the tensors of this run.
        sources, run, backlog, asked = first.sources, first.run, first.backlog, first.asked
        flowing = tf.nest.flatten([first.inputs, list(upstream)], expand_composites=True)
        key = tuple(sources), asked, private_api.is_recorded(flowing)
        function = self._backward.get(key)
        if function is None:

            def trace_backward(inputs: Tensors, upstream: Tensors, draws: Tensors, results: Tensors) -> Gradients:
                traced = weight_gradients.Backward()
                again = FirstRun(inputs, sources, run, draws, results, asked=asked, twice=key[-1])
                with operation_seeds.continued():  # A custom gradient may draw, too.
                    gradients, checksums = self._recomputation.backward(again, upstream)
                n = self.arguments_among(again)
                traced.order(gradients[:n], gradients[n:], backlog)
                return gradients, checksums

            self._backward[key] = function = _ConcreteCache(trace_backward)
        return function(first.inputs, list(upstream), first.draws, first.results)


class CompiledRecomputation(TracedReplay):
    """A recomputation whose two directions are `tf.function`s, for eager callers."""

    records_nothing = True

    def __init__(self, recomputation: TwoRuns) -> None:
        super().__init__(recomputation)
        self._forward = _ConcreteCache(self._trace_forward)
        # By graph, which a shape that is dropped frees.
        self._layouts: weakref.WeakKeyDictionary[Any, tuple[functional.Run, int, Any]] = weakref.WeakKeyDictionary()
        self._reached: weakref.WeakKeyDictionary[Any, Reached | None] = weakref.WeakKeyDictionary()

    def _trace_forward(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        weights = len(self.effects.reads)
        function_gradients.keep_little(len(inputs) - weights, weights)
        with operation_seeds.continued():
            run = self._recomputation.forward(inputs)
        # One backward function serves many shapes, so it holds none of them.
        labels = [(name, _of_any_size(spec)) for name, spec in run.labels]
        specs = [_of_any_size(s) for s in run.specs]
        layout = dataclasses.replace(run.without_tensors(), specs=specs, labels=labels)
        self._layouts[tf.compat.v1.get_default_graph()] = layout, len(run.draws), private_api.call_context()
        return run.tensors + run.draws + run.results

    def _concrete(self, inputs: list[tf.Tensor]) -> Any:
        before = private_api.call_context()
        function = self._forward.concrete([inputs])
        private_api.set_call_context(before)
        return function

    def asked_outputs(self, inputs: list[tf.Tensor]) -> AskedOutputs | None:
        if self._reached and not any(self._reached.values()):  # Other sizes change nothing about it.
            return None
        graph = self._concrete(inputs).graph
        outputs = self._layouts[graph][0].differentiable
        if graph not in self._reached:
            reached = concrete_functions.reached_outputs(graph, len(inputs), outputs)
            is_partial = any(0 < len(each) < len(outputs) for each in reached)
            self._reached[graph] = reached if is_partial else None
        reached = self._reached[graph]
        return None if reached is None else AskedOutputs(reached, outputs)

    def forward(self, inputs: list[tf.Tensor]) -> functional.Run:
        function = self._concrete(inputs)
        return self._finished(function, concrete_functions.call_flat(function, inputs))

    def unrecorded(self, inputs: list[tf.Tensor]) -> functional.Run:
        function = self._concrete(inputs)  # A new trace has to be recorded by tapes in it.
        with private_api.no_recording():
            made = concrete_functions.call_flat(function, inputs)
        return self._finished(function, made)

    def _finished(self, function: Any, made: list[tf.Tensor]) -> functional.Run:
        layout, drawn, context_left = self._layouts[function.graph]
        private_api.set_call_context(context_left)
        n = len(layout.specs)
        return dataclasses.replace(layout, tensors=made[:n], draws=made[n : n + drawn], results=made[n + drawn :])


class _ConcreteCache:
    """The concrete functions of a `tf.function` of lists of tensors, by shapes; a recomputation has fixed dtypes."""

    def __init__(self, python_function: Callable) -> None:
        # TensorFlow warns of retracing by code object, and a `partial` has none.
        self._python_function = functools.partial(python_function)
        self._function = tf.function(self._python_function, autograph=False, reduce_retracing=True)
        self._concrete: RecentlyUsed[tuple, Any] = RecentlyUsed(_MOST_SHAPES)

    def concrete(self, lists: Sequence[list[tf.Tensor]]) -> Any:
        """The concrete function for lists of eager tensors."""
        key = tuple(concrete_functions.shape_of(tensor) for given in lists for tensor in given)
        function = self._concrete.get(key)
        if function is None:
            try:
                function = concrete_functions.concrete(self._function, lists)
            except OUT_OF_MEMORY:
                raise
            except Exception:
                # From the second shape on TensorFlow traces open sizes, which some layers do not take.
                if not self._concrete:
                    raise
                function = concrete_functions.concrete(tf.function(self._python_function, autograph=False), lists)
            self._concrete[key] = function
        return function

    def __call__(self, *lists: list[tf.Tensor]) -> Any:
        tensors = [tensor for given in lists for tensor in given]
        if not all(isinstance(t, tf.Tensor) and not tf.is_symbolic_tensor(t) for t in tensors):  # or sparse gradients
            return self._function(*lists)
        return concrete_functions.call_flat(self.concrete(lists), tensors)


def _alike(first: Sequence[tf.TensorSpec], second: Sequence[tf.TensorSpec]) -> bool:
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape.is_compatible_with(b.shape) for a, b in zip(first, second)
    )


def _of_any_size(spec: tf.TensorSpec) -> tf.TensorSpec:
    open_sizes: Any = None if spec.shape.rank is None else [None] * spec.shape.rank
    return tf.TensorSpec(open_sizes, spec.dtype)


def _describe(specs: Sequence[tf.TensorSpec]) -> str:
    return ", ".join(f"{spec.dtype.name}{spec.shape}" for spec in specs)
