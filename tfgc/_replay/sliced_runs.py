"""A recomputation whose two directions run in slices of the batch, so that its inside needs a share of the memory."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import weight_gradients
from tfgc._pure import drawn_rows, functional, side_effects, tensor_packing
from tfgc._replay import batch_slices
from tfgc._replay.forward_backward import Recomputation
from tfgc._replay.two_runs import FirstRun, Gradients, TwoRuns


class SlicedRecomputation(TwoRuns):
    """A recomputation in slices. Its function must give for each sample what it gives for that sample alone."""

    def __init__(self, recomputation: Recomputation, slices: int) -> None:
        super().__init__(recomputation.effects, recomputation.surroundings, recomputation.name)
        self._recomputation, self._slices = recomputation, slices

    def forward(self, inputs: list[tf.Tensor]) -> functional.Run:
        arguments, values = self._split(inputs)
        runs: list[functional.Run] = []

        def step(part: list[tf.Tensor], start: Any) -> batch_slices.Results:
            with self._drawing(start):
                run = self._recomputation.forward([*part, *values])
            runs.append(run)
            return run.tensors[: len(run.tensors) - len(run.written)], []

        joined, _ = batch_slices.run(arguments, self._slices, step)
        tensors = [*joined, *runs[0].tensors[len(joined) :]]  # All slices leave the seeds alike.
        return dataclasses.replace(runs[0], tensors=tensors, specs=[tensor_packing.spec_of(t) for t in tensors])

    def backward(self, first: FirstRun, upstream: Sequence[tf.Tensor]) -> Gradients:
        # A loop computes all that it returns. One that nobody reads is pruned as a whole.
        apart = [i for i in first.sources if i in first.doubtful]
        others = [i for i in first.sources if i not in first.doubtful]
        made: dict[int, Any] = {}
        for sources in filter(None, (others, apart)):
            made.update(zip(sources, self._gradients(first, upstream, sources)))
        return [made[i] for i in first.sources], []

    def _gradients(self, first: FirstRun, upstream: Sequence[tf.Tensor], sources: list[int]) -> list[Any]:
        arguments, values = self._split(first.inputs)
        of_any_batch = [tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) for spec in first.run.specs]
        run = dataclasses.replace(first.run, specs=of_any_batch)
        rows = sum(i < len(arguments) for i in sources)
        backlog = first.backlog and first.backlog.in_slices(self._slices)

        def step(part: tuple[list[tf.Tensor], list[tf.Tensor]], start: Any) -> batch_slices.Results:
            arguments, upstream = part
            of_slice = FirstRun([*arguments, *values], sources, run, [], asked=first.asked, awaited=first.awaited)
            traced = weight_gradients.Backward()
            with self._drawing(start):
                gradients, _ = self._recomputation.backward(of_slice, upstream)
            traced.order(gradients[:rows], gradients[rows:], backlog)
            return [None if g is None else tf.convert_to_tensor(g) for g in gradients[:rows]], gradients[rows:]

        batch = arguments, [tf.convert_to_tensor(u) for u in upstream]
        joined, summed = batch_slices.run(batch, self._slices, step)
        return [*joined, *summed]

    def _drawing(self, start: Any) -> contextlib.AbstractContextManager:
        """What a slice draws that starts there."""
        return drawn_rows.rows_from(start) if self.effects.seeded else contextlib.nullcontext()

    def _split(self, inputs: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The arguments, and the values of variables."""
        n = len(inputs) - len(self.effects.reads)
        return inputs[:n], inputs[n:]


def obstacle(effects: side_effects.Effects) -> str | None:
    """Why a function with these effects cannot run in slices, or None."""
    written = next((v.path for v in effects.writes if not drawn_rows.is_seed(v)), None)
    if written is not None:
        return f"it cannot run in slices of the batch, since it updates {written!r} with each batch"
    if effects.draws or effects.chooses:
        return "it cannot run in slices of the batch, since it draws random numbers that no seed of its layers gives"
    if effects.captured or effects.variables:
        return "it cannot run in slices of the batch, since it closes over tensors or plain variables"
    return effects.obstacle
