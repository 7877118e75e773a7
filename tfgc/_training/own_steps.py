"""The own `train_step` of a model, and what is known of it while its code runs."""

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import keras
import tensorflow as tf

from tfgc._calls import tracing
from tfgc._calls.own_step_plans import OwnStep
from tfgc._core.recently_used import RecentlyUsed
from tfgc._framework import fit_loop
from tfgc._training import batch_specs, plan_report

Known = TypeVar("Known")


class InStep(Generic[Known]):
    """What is known of the `train_step` that each thread runs."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}

    @property
    def here(self) -> Known | None:
        """What is known of the step that this thread runs; None if it runs none."""
        return self._known.get(threading.get_ident())

    def run(self, known: Known, step: Callable, *args: Any, **kwargs: Any) -> Any:
        """Run a step of which this is known."""
        thread = threading.get_ident()
        self._known[thread] = known
        try:
            return step(*args, **kwargs)
        finally:
            self._known.pop(thread, None)


class StepHere(NamedTuple):
    """A `train_step` that runs.

    Attributes:
        step: What it does with its batch; None where sizes of that are open.
        calls: The signatures of the calls of the model that it has made.
    """

    step: OwnStep | None
    calls: set[Any]


class TracedSteps:
    """Traces of a functional model's own `train_step`, made before it runs.

    In the middle of the step, at its first call of the model, a trace would run the code of the step inside of itself:
    what that puts on the model, or freezes, would be another thing behind the call than in front of it.

    Args:
        model: The model.
        verbose: Whether a line says so when it takes long.
    """

    def __init__(self, model: keras.Model, verbose: bool) -> None:
        self._model, self._verbose = model, verbose
        self._calls: RecentlyUsed[Hashable, set[Any]] = RecentlyUsed(most=8)

    def traced(self, batch: Any, xla: bool, is_planned: Callable[[Any, Iterable[Any]], bool]) -> StepHere:
        """A step on a batch, traced unless it was before and all calls that it made then have plans."""
        specs = batch_specs.specs(batch, None if tf.executing_eagerly() else fit_loop.batch_size())
        if specs is None:
            return StepHere(None, set())
        key = (repr(specs), xla)
        calls = self._calls.get(key)
        if calls is not None and is_planned(specs, tuple(calls)):
            return StepHere(OwnStep(specs, None), calls)
        start = time.perf_counter()
        trace = plan_report.planned(
            self._model, lambda: tracing.own_step(self._model, specs, xla=xla), verbose=self._verbose
        )
        self._calls[key] = calls = set[Any]()
        return StepHere(OwnStep(specs, trace, time.perf_counter() - start), calls)
