"""Traces that serve more than one run: copied for the replay, and for other blocks that do the same."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import graph_building, private_api
from tfgc._pure import functional, side_effects, traced_calls
from tfgc._replay.forward_backward import CompiledRecomputation, Recomputation, TracedReplay, fence


class CopiedRecomputation:
    """A recomputation in graphs, both directions of which are copies of one trace.

    Args:
        recomputation: What runs again where a copy does not do: in a nest, and for gradients of gradients, since tapes
            do not see operations that are copied.
        traced: The trace.
        is_nested: Whether the second run is another function than the first.
    """

    records_nothing = False

    def __init__(self, recomputation: Recomputation, traced: traced_calls.TracedCall, is_nested: bool) -> None:
        self.effects, self.name = recomputation.effects, recomputation.name
        self.surroundings = recomputation.surroundings
        self._recomputation, self._traced, self._is_nested = recomputation, traced, is_nested
        self._gradients: tuple[list[int], traced_calls.Gradients] | None = None

    def forward(self, inputs: list[tf.Tensor]) -> functional.Run:
        if [x.shape for x in inputs] != self._traced.shapes:  # A function traced again, for other sizes.
            return self._recomputation.forward(inputs)
        made = self._traced.forward.copy(inputs, "first_run")
        private_api.set_call_context(self._traced.context_left)
        return dataclasses.replace(self._traced.run, tensors=made)

    def backward(
        self,
        inputs: list[tf.Tensor],
        sources: list[int],
        first: functional.Run,
        upstream: Sequence[tf.Tensor],
        draws: list[tf.Tensor],
    ) -> tuple[list[Any], list[tf.Tensor]]:
        again = functools.partial(self._recomputation.backward, inputs, sources, first, upstream, draws)
        plain = all(isinstance(u, tf.Tensor) for u in upstream) and [x.shape for x in inputs] == self._traced.shapes
        if not plain or self._is_nested or self._traced.customized or private_api.is_recorded([*inputs, *upstream]):
            return again()
        if self._gradients is None:
            with self.surroundings.reentered():
                self._gradients = sources, self._traced.backward(sources)
        known, gradients = self._gradients
        if known != sources:
            return again()
        upstream = [graph_building.capture(u) for u in upstream]
        n = len(inputs) - len(self.effects.reads)
        with fence(upstream) as wait:
            held = [wait(x) for x in inputs[:n]] + [graph_building.capture(x) for x in inputs[n:]]
        return gradients.copy([*held, *upstream], "replay"), []


class SharedTrace:
    """The trace of another block, run on other variables and layers.

    Args:
        compiled: That block's recomputation.
        effects: Its effects, with the variables of this block.
        counterparts: Gives for a list of that block's variables or layers those of this one.
    """

    def __init__(
        self,
        compiled: CompiledRecomputation | CopiedRecomputation,
        effects: side_effects.Effects,
        counterparts: Callable,
    ) -> None:
        self.effects, self.name, self.surroundings = effects, compiled.name, compiled.surroundings
        self.records_nothing, self.backward = compiled.records_nothing, compiled.backward
        self._compiled = compiled
        self._counterparts = counterparts

    def forward(self, inputs: list[tf.Tensor]) -> functional.Run:
        run = self._compiled.forward(inputs)
        layers, written = self._counterparts(run.loss_layers), self._counterparts(run.written)
        return dataclasses.replace(run, loss_layers=layers, written=written)


AnyRecomputation = Recomputation | TracedReplay | CopiedRecomputation | SharedTrace
