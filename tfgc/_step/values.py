"""Who reads the values of variables: an update of a variable whose value will still be read makes a copy of it."""

from collections import defaultdict
from collections.abc import Sequence

from tfgc._step.step import VIEWS, Tensor


class Values:
    """The values of variables that were read, operation by operation as traced."""

    def __init__(self) -> None:
        self._variables: dict[Tensor, Tensor] = {}  # by value, the handle
        self._readers: dict[Tensor, list[int]] = defaultdict(list)  # gradients, by handle

    def readers(self, number: int, type_: str, inputs: Sequence[Tensor], call: int) -> list[int]:
        """The gradients that read the variables which an operation updates: it is to run behind them."""
        if type_ == "ReadVariableOp":
            self._variables[number, 0] = inputs[0]
            return []
        handles = [self._variables[t] for t in inputs if t in self._variables]
        if type_ in VIEWS and handles:
            self._variables[number, 0] = handles[0]
        elif call:
            for handle in handles:
                self._readers[handle].append(number)
        return [j for t in inputs for j in self._readers.get(t, ())]
