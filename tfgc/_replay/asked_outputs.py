"""No gradient for what leads only to outputs that no gradient comes from.

The gradient of a `tf.function` is asked for zeros in place of the gradients that do not come, and weights that lead to
nothing else get zeros where plain code gives None: weight decay would move them.
"""

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import graph_building

# For each input of a function the positions of the outputs that it leads to.
Reached = Sequence[Collection[int]]


class AskedOutputs:
    """Of one call, the outputs that a pass of a tape has gradients of, among those that gradients may come from."""

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


def stopped(inputs: Sequence[tf.Tensor], sources: Collection[int]) -> list[tf.Tensor]:
    """The inputs, of which only the sources let gradients through."""
    return [x if i in sources else tf.stop_gradient(x) for i, x in enumerate(inputs)]
