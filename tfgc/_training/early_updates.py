"""Update each weight as soon as its gradient is complete, so that the gradient can be freed.

One call of the optimizer's `apply` ends the step. It counts the iteration, averages weights, and warns of weights
without a gradient, as it would with all gradients. It needs a gradient, too: the smallest one waits for it.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import OptionError
from tfgc._framework import complete_gradients, partial_steps, update_order

AT_END, AS_READY = "at_end", "as_ready"


def check_option(apply_gradients: Any, *excluded: tuple[bool, str, str]) -> None:
    """Raise `OptionError` for a time that there is not, or not with options that are set: whether, what, and why."""
    if apply_gradients not in (AT_END, AS_READY):
        raise OptionError(f"apply_gradients={apply_gradients!r} is unknown: give {AT_END!r} or {AS_READY!r}")
    for is_set, option, reason in excluded:
        if is_set and apply_gradients == AS_READY:
            raise OptionError(f"apply_gradients={AS_READY!r} cannot be combined with {option}: {reason}")


def check_optimizer(optimizer: keras.Optimizer, variables: Sequence[keras.Variable]) -> None:
    """Raise an `OptionError` if an optimizer cannot update one of these variables before it has all gradients."""
    obstacle = _obstacle(optimizer, variables)
    if obstacle is not None:
        raise OptionError(f"apply_gradients={AS_READY!r}: {obstacle}, or leave apply_gradients out")


def _obstacle(optimizer: Any, variables: Sequence[keras.Variable]) -> str | None:
    """Why an optimizer needs all gradients at once, and what to use instead."""
    name = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = type(optimizer.inner_optimizer).__name__
        return (
            f"{name} updates nothing if any gradient is not finite, so it needs all of them. Use its inner optimizer, "
            f"{inner}, with loss_scale_factor="
        )
    if optimizer.global_clipnorm:
        given = f"global_clipnorm={optimizer.global_clipnorm!r}"
        return f"{given} of {name} clips by the norm of all gradients. Use clipnorm=, which clips each by its own"
    steps = optimizer.gradient_accumulation_steps
    if steps:
        given = f"gradient_accumulation_steps={steps!r}"
        return f"{given} of {name} keeps the sums of all gradients. Use plans, which let you train on the whole batch"
    constrained = [variable.path for variable in variables if variable.constraint is not None]
    if optimizer.use_ema and constrained:
        return (
            f"use_ema=True of {name} averages weights before they are constrained, and {constrained[0]!r} has a "
            "constraint. Use one of the two"
        )
    if partial_steps.asks_for_its_rate(optimizer):
        return (
            f"the learning_rate of {name} is a Python function, which would be called for each weight and not once a "
            "step. Use a keras.optimizers.schedules.LearningRateSchedule"
        )
    method = partial_steps.own_method_of_all(optimizer)
    if method is not None:
        return f"{name} has its own {method}, which takes all gradients at once. Use another optimizer, such as Adam"
    return None


class EarlyUpdates:
    """The updates of one step, while its tape is differentiated."""

    def __init__(self, optimizer: Any, variables: Sequence[keras.Variable]) -> None:
        self._optimizer, self._variables = optimizer, variables
        self._sizes = [variable.shape.num_elements() for variable in variables]
        self._waiting: tuple[int, Any] | None = None
        self._updated: set[int] = set()
        self._order = update_order.UpdateOrder()
        self._sources: list[Any] = []

    def watch(self, tape: tf.GradientTape) -> None:
        """Begin, with a tape that is about to record the step."""
        self._sources = complete_gradients.watch(tape, self._variables, self._take)

    def run(self, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        """Differentiate the loss, and update all weights."""
        tape.gradient(loss, self._sources)
        gradients = {} if self._waiting is None else dict([self._waiting])
        self._waiting = None
        left = [i for i in range(len(self._variables)) if i not in self._updated]
        self._optimizer.apply_gradients([(gradients.get(i), self._variables[i]) for i in left])
        self._order.settle()

    def _take(self, i: int, gradient: Any) -> None:
        if self._waiting is None:
            self._waiting = i, gradient
            return
        if self._sizes[i] < self._sizes[self._waiting[0]]:
            (i, gradient), self._waiting = self._waiting, (i, gradient)
        self._updated.add(i)
        variable = self._variables[i]
        with partial_steps.updating(self._optimizer), self._order.update(variable, gradient):
            self._optimizer.apply([gradient], [variable])
