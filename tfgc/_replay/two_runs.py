"""What the ways to run a function twice have in common, and what a replay is given of the first run."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import graph_building, weight_gradients
from tfgc._framework.surroundings import Surroundings
from tfgc._pure import functional, side_effects

# A gradient for each source and each thing that the function closes over, and the recorded checksums.
Gradients = tuple[list[Any], list[tf.Tensor]]
# For each input of a function the positions of the outputs that it leads to.
Reached = Sequence[Collection[int]]


@dataclasses.dataclass(frozen=True, eq=False)
class FirstRun:
    """What is kept of a first run for its replay.

    Doubtful sources are those that no tape recorded while a graph was built, or that the tape is not asked for: their
    gradients are there to be pruned, if nobody differentiates that graph from outside. Where gradients come from some
    tensors alone, those are `asked`: zeros are no substitute where a derivative is infinite. If a tape records the
    replay, so that its gradients may have gradients, it runs `twice`: those of results that stand in are not known.
    """

    inputs: list[tf.Tensor]  # the argument tensors, then the values of the variables
    sources: list[int]  # positions of the inputs that gradients are asked for
    run: functional.Run  # what it did, without its tensors
    draws: list[tf.Tensor]
    results: list[tf.Tensor] = dataclasses.field(default_factory=list)  # that the replay need not compute again
    doubtful: frozenset[int] = frozenset()
    backlog: weight_gradients.Backlog | None = None
    asked: frozenset[int] | None = None  # positions among the differentiable tensors of the run; None for all
    awaited: Sequence[tf.Tensor] = ()  # numbers that the replay waits for under XLA, besides upstream gradients
    twice: bool = False

    def of_asked(self, things: Sequence[Any]) -> list[Any]:
        """Of one thing for each differentiable tensor those that gradients come from."""
        return [thing for i, thing in enumerate(things) if self.asked is None or i in self.asked]


class AskedOutputs:
    """Of one call, the outputs that a pass of a tape has gradients of, among those that gradients may come from.

    What leads only to others gets no gradient. The gradient of a `tf.function` is asked for zeros in place of the
    gradients that do not come, and weights that lead to nothing else get zeros where plain code gives None: weight
    decay would move them.
    """

    def __init__(self, reached: Reached, outputs: Collection[int]) -> None:
        self._reached, self._outputs = reached, outputs
        self._asked: set[int] = set()
        self._is_over = False

    def passing(self, inputs: Sequence[tf.Tensor], sources: Collection[int]) -> list[tf.Tensor]:
        """Copies of the inputs that pass on no gradient unless an output is asked for that they lead to."""

        def passed(i: int, tensor: tf.Tensor) -> tf.Tensor:
            def backward(upstream: Any) -> Any:
                self._is_over = True
                return upstream if self._asked.intersection(self._reached[i]) else None

            return graph_building.recorded_copy(tensor, backward)

        partial = {i for i in sources if len(self._reached[i]) < len(self._outputs)}
        return [passed(i, tensor) if i in partial else tensor for i, tensor in enumerate(inputs)]

    def noting(self, results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Copies of the results that note which of them a gradient comes to, which all do before any input."""

        def noted(i: int, tensor: tf.Tensor) -> tf.Tensor:
            def backward(upstream: Any) -> Any:
                if self._is_over:  # Another pass of the tape.
                    self._asked, self._is_over = set(), False
                self._asked.add(i)
                return upstream

            return graph_building.recorded_copy(tensor, backward)

        return [noted(i, tensor) if i in self._outputs else tensor for i, tensor in enumerate(results)]


class TwoRuns:
    """How a function runs, and how it runs again for gradients, entering the surroundings of the first run."""

    # Whether an active tape must be kept from recording the first run.
    records_nothing = False

    def __init__(self, effects: side_effects.Effects, surroundings: Surroundings, name: str) -> None:
        self.effects, self.surroundings, self.name = effects, surroundings, name

    def arguments_among(self, first: FirstRun) -> int:
        """How many of the sources are arguments of the call, and no values of variables."""
        return sum(i < len(first.inputs) - len(self.effects.reads) for i in first.sources)

    def asked_outputs(self, inputs: list[tf.Tensor]) -> AskedOutputs | None:
        """What finds out for a call which outputs gradients come from, where TensorFlow would take all for asked."""
        return None

    def forward(self, inputs: list[tf.Tensor]) -> functional.Run:
        """Run on `inputs`: the argument tensors, then the values of the variables."""
        raise NotImplementedError

    def unrecorded(self, inputs: list[tf.Tensor]) -> functional.Run:
        """The same where it `records_nothing`: no tape records it, but those that the function itself holds."""
        raise NotImplementedError

    def backward(self, first: FirstRun, upstream: Sequence[tf.Tensor]) -> Gradients:
        """Run again, for gradients, given those of the differentiable tensors of the first run."""
        raise NotImplementedError
