"""What the ways to run a function twice have in common, and what a replay is given of the first run."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import weight_gradients
from tfgc._framework.surroundings import Surroundings
from tfgc._pure import functional, side_effects
from tfgc._replay.asked_outputs import AskedOutputs

# A gradient for each source and each thing that the function closes over, and the recorded checksums.
Gradients = tuple[list[Any], list[tf.Tensor]]


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

    def backward(self, first: FirstRun, upstream: Sequence[tf.Tensor]) -> Gradients:
        """Run again, for gradients, given those of the differentiable tensors of the first run."""
        raise NotImplementedError
