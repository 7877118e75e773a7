"""A training step that follows changes of its model, and that may run out of memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfgc._core.plan import Plan
from tfgc._core.recently_used import RecentlyUsed
from tfgc._errors import PlanMismatchError, UnsupportedModelError
from tfgc._framework import layer_settings
from tfgc._tracing import keras_graph
from tfgc._training import out_of_memory
from tfgc._training.atomic_step import AtomicStep
from tfgc._training.planned_calls import PlannedCalls
from tfgc._training.rewritten_function import RewrittenFunction

# Traces of a step, by settings of its model: a dropout rate that is lowered at every step makes a new one each time.
_MOST_TRACES = 8


class FollowingStep(out_of_memory.GuardedStep):
    """A step that is traced again when settings of the model change, and raises when its layers have changed.

    `make` gives the step, in "compiled" mode as Python, else a new `tf.function` of it.
    """

    def __init__(
        self, make: Callable[[], Any], trainer: Any, calls: PlannedCalls, mode: str, atomic: AtomicStep | None
    ) -> None:
        super().__init__(f"the training step of {trainer.model.name!r}", atomic)
        self._make, self._trainer, self._calls, self.mode = make, trainer, calls, mode
        self._program = keras_graph.Program(trainer.model)
        self._settings = layer_settings.Settings([trainer.model])
        self._variables = trainer.model.variables
        self._functions: RecentlyUsed[tuple, Callable] = RecentlyUsed(_MOST_TRACES)
        self._latest: Callable | None = None

    def run(self, x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, tf.Tensor]:
        """Train on one batch; return its loss, and the metrics so far."""
        name = self._trainer.model.name
        if not self._program.is_current:
            raise PlanMismatchError(
                f"{name!r} has changed since tfgc.train_step was called, and the step runs the layers that it had "
                "then. Make a new step for it"
            )
        if not tf.executing_eagerly():
            if self.atomic is not None:
                raise UnsupportedModelError(
                    f"on_oom='replan': {self.what} is being traced by a tf.function around it, and "
                    "cannot be taken back there. Call the step directly, or leave on_oom out"
                )
            return self.attempt(x, y, sample_weight)
        return self.guarded(x, y, sample_weight)

    def attempt(self, x: Any, y: Any, sample_weight: Any) -> dict[str, tf.Tensor]:
        if self.mode == "compiled":
            return self._make()(x, y, sample_weight)
        self._latest = function = self._functions.get(self._key())
        if function is not None:
            return function(x, y, sample_weight)
        self._latest = function = self._make()
        with self._settings.watched():
            if self.atomic is None:
                logs = function(x, y, sample_weight)
            else:
                function.get_concrete_function(x, y, sample_weight)  # Makes the variables of metrics.
        self._functions[self._key()] = function
        if self.atomic is None:
            return logs
        self.atomic.begin()
        return function(x, y, sample_weight)

    def _key(self) -> tuple:
        """The settings of the layers, and which variables train: each can be frozen for itself."""
        return self._settings(), tuple([v.trainable for v in self._variables])

    def planned(self, x: Any, y: Any, sample_weight: Any) -> out_of_memory.StepByPlan | None:
        trainer, function = self._trainer, self._latest
        if isinstance(function, RewrittenFunction) and function.plans:
            return out_of_memory.step_as_a_whole(trainer.model, trainer.optimizer, [*function.plans.values()][-1])
        found = self._calls.to_explain()
        return found and dataclasses.replace(found, optimizer=trainer.optimizer)

    def can_be_taken_back(self) -> bool:
        return not tf.distribute.has_strategy()

    def replace(self, plan: Plan, needed_bytes: int) -> None:
        if isinstance(self._latest, RewrittenFunction):
            self._latest.use(plan)
        else:
            self._calls.use(plan)
            self._functions.clear()
