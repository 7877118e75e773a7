"""Traces that serve more than one run: copied for the replay, and for other blocks that do the same."""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfgc._framework import graph_building, private_api
from tfgc._pure import functional, packed_masks, side_effects, traced_calls
from tfgc._replay.fence import fence, waiting, waiting_for_all
from tfgc._replay.forward_backward import CompiledRecomputation, Recomputation
from tfgc._replay.two_runs import AskedOutputs, FirstRun, Gradients, TwoRuns


class CopiedRecomputation(TwoRuns):
    """A recomputation in graphs, both directions of which are copies of one trace.

    `recomputation` runs again where a copy does not do: in a nest, where the second run is another function than the
    first, and for gradients of gradients, since tapes do not see operations that are copied.
    """

    def __init__(self, recomputation: Recomputation, traced: traced_calls.TracedCall, is_nested: bool) -> None:
        super().__init__(recomputation.effects, recomputation.surroundings, recomputation.name)
        self._recomputation, self._traced, self._is_nested = recomputation, traced, is_nested
        self._gradients: tuple[tuple, traced_calls.Gradients | None] | None = None

    def forward(self, inputs: list[tf.Tensor]) -> functional.Run:
        if [x.shape for x in inputs] != self._traced.shapes:  # A function traced again, for other sizes.
            return self._recomputation.forward(inputs)
        made = self._traced.forward.copy(inputs, "first_run")
        private_api.set_call_context(self._traced.context_left)
        n = len(self._traced.run.specs)
        behind = n + self._traced.n_draws
        results = made[behind:]
        if not private_api.in_xla():
            results = [packed_masks.packed(r) if packed_masks.can_be_packed(r) else r for r in results]
        return dataclasses.replace(self._traced.run, tensors=made[:n], draws=made[n:behind], results=results)

    def backward(self, first: FirstRun, upstream: Sequence[tf.Tensor]) -> Gradients:
        inputs, traced = first.inputs, self._traced
        plain = all(isinstance(u, tf.Tensor) for u in upstream) and [x.shape for x in inputs] == traced.shapes
        copied = len(first.results) == len(traced.results) and not self._is_nested
        if not plain or not copied or first.twice or private_api.is_recorded([*inputs, *upstream]):
            return self._recomputation.backward(first, upstream)
        wanted = first.sources, first.asked
        if self._gradients is None:
            self._gradients = wanted, None  # If this fails, the trace is used up, and replays run without it.
            with self.surroundings.reentered():
                asked = first.of_asked(range(len(upstream)))
                self._gradients = wanted, traced.backward(first.sources, asked, first.doubtful)
        known, gradients = self._gradients
        if gradients is None or known != wanted:
            return self._recomputation.backward(first, upstream)
        upstream = [graph_building.capture(u) for u in upstream]
        n = len(inputs) - len(self.effects.reads)
        with fence(upstream, first.awaited) as wait:
            held = waiting(inputs, n, wait, traced.layouts)
            upstream = waiting_for_all(upstream, held, wait)
            # Sizes, which may depend on integers, must be known when XLA compiles the step.
            in_xla = private_api.in_xla()
            taken = [*first.draws, *first.results]
            shapes = len(taken) - traced.n_shapes
            taken = [
                graph_building.capture(r) if i >= shapes or (in_xla and r.dtype.is_integer) else wait(r)
                for i, r in enumerate(taken)
            ]
        draws, results = taken[: len(first.draws)], taken[len(first.draws) :]
        results = [
            packed_masks.unpacked(r, spec.shape) if spec.dtype.is_bool and not r.dtype.is_bool else r
            for r, spec in zip(results, traced.results)
        ]
        return gradients.copy([*held, *draws, *results, *upstream], "replay"), []


class SharedTrace(TwoRuns):
    """The trace of another block, run on other variables and layers.

    `counterparts` gives for a list of variables or layers of that block, `compiled`, those of this one.
    """

    def __init__(
        self,
        compiled: CompiledRecomputation | CopiedRecomputation,
        effects: side_effects.Effects,
        counterparts: Callable,
    ) -> None:
        super().__init__(effects, compiled.surroundings, compiled.name)
        self.records_nothing = compiled.records_nothing
        self._compiled = compiled
        self._counterparts = counterparts

    def asked_outputs(self, inputs: list[tf.Tensor]) -> AskedOutputs | None:
        return self._compiled.asked_outputs(inputs)

    def forward(self, inputs: list[tf.Tensor]) -> functional.Run:
        return self._here(self._compiled.forward(inputs))

    def unrecorded(self, inputs: list[tf.Tensor]) -> functional.Run:
        return self._here(self._compiled.unrecorded(inputs))

    def _here(self, run: functional.Run) -> functional.Run:
        layers, written = self._counterparts(run.loss_layers), self._counterparts(run.written)
        return dataclasses.replace(run, loss_layers=layers, written=written)

    def backward(self, first: FirstRun, upstream: Sequence[tf.Tensor]) -> Gradients:
        return self._compiled.backward(first, upstream)
