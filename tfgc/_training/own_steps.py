"""The own `train_step` of a model, and what is known of it while its code runs."""

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import keras
import tensorflow as tf

from tfgc._calls import tracing
from tfgc._calls.own_step_plans import OwnStep, OwnStepPlans
from tfgc._core.recently_used import RecentlyUsed
from tfgc._framework import fit_loop
from tfgc._planning import batch_specs
from tfgc._planning.batch_specs import Signature
from tfgc._training import plan_report

Known = TypeVar("Known")
# Batches of other sizes whose steps are remembered. Beyond that a smaller one counts as a larger one.
_MOST = 8


class InStep(threading.local, Generic[Known]):
    """What is known of the `train_step` that this thread runs; None if it runs none."""

    here: Known | None = None

    def run(self, known: Known, step: Callable, *args: Any, **kwargs: Any) -> Any:
        """Run a step of which this is known."""
        self.here = known
        try:
            return step(*args, **kwargs)
        finally:
            self.here = None


class StepHere(NamedTuple):
    """What a running `train_step` does, None where sizes are open, and the signatures of the calls that it has made."""

    step: OwnStep | None
    calls: set[Any]

    @property
    def note(self) -> str | None:
        """Why the model has no plan after the step: what that calls in its place; None if it calls the model."""
        if self.calls:
            return None
        called = [] if self.step is None or self.step.trace is None else self.step.trace.root.children
        parts = dict.fromkeys(call.layer.name for call in called if isinstance(call.layer, keras.Layer))
        named = ", ".join(map(repr, parts)) or "other layers"
        return f"has no plan: its train_step calls {named} and not the model itself; enable what it calls"


class TracedSteps:
    """Traces of a functional model's own `train_step`, made before it runs."""

    def __init__(self, model: keras.Model, verbose: bool) -> None:
        self._model, self._verbose = model, verbose
        self._calls: RecentlyUsed[Signature, set[Any]] = RecentlyUsed(_MOST)

    def traced(
        self, batch: Any, before: Any, *, xla: bool, state: Hashable, is_planned: Callable[[Any, Iterable[Any]], bool]
    ) -> StepHere:
        """A step on a batch, traced unless it was before and all calls that it made then are planned.

        `state` names how the model trains (`TrainingState.now`). If the batch differs from one `before`,
        `tf.TensorSpec`s or None, in numbers of samples alone, a step is traced that holds both.
        """
        specs = batch_specs.specs(batch, None if tf.executing_eagerly() else fit_loop.batch_size())
        if specs is None:
            return StepHere(None, set())
        calls = self._known(_signature(specs, xla, state))
        if calls is not None and is_planned(specs, tuple(calls)):
            return StepHere(OwnStep(specs, None), calls)
        # In the middle of the step, at its first call of the model, a trace would run the code of the step inside of
        # itself: what that puts on the model, or freezes, would differ before and after the call.
        specs, start = _holding_both(specs, before), time.perf_counter()
        trace = plan_report.planned(
            self._model, lambda: tracing.own_step(self._model, specs, xla=xla), verbose=self._verbose
        )
        self._calls[_signature(specs, xla, state)] = calls = set[Any]()
        return StepHere(OwnStep(specs, trace, time.perf_counter() - start), calls)

    def _known(self, batch: Signature) -> set[Any] | None:
        """The calls of a step that was traced, on a batch of these sizes or of larger ones."""
        known = self._calls.copy()
        covering = (other for other in known if other.covers(batch))
        if len(known) < _MOST:  # Beyond that a batch may be larger in more than the number of samples.
            of_a_sample = [shape[1:] for shape, _ in batch.sizes]
            covering = (other for other in covering if [shape[1:] for shape, _ in other.sizes] == of_a_sample)
        return known.get(batch, known.get(next(covering, batch)))


def plans_of(model: keras.Model, batch: Any, *, xla: bool) -> OwnStepPlans:
    """The plans for a model's own `train_step` on a batch that it was planned for."""
    trace = tracing.own_step(model, batch, xla=xla)
    assert trace is not None
    return OwnStepPlans(model, batch, trace=trace, xla=xla)


def _signature(specs: Any, xla: bool, state: Hashable) -> Signature:
    """What the batches of steps have in common that make the same calls: their shapes, with the samples in front."""
    sizes = tuple((tuple(spec.shape), spec.dtype.name) for spec in batch_specs.specs_in(specs))
    return Signature(sizes, "xla" if xla else "graph", in_step=True, training=state)


def _holding_both(specs: Any, others: Any) -> Any:
    """Specs of as many samples as both have, where nothing else differs; else the first ones."""
    shapes, its_shapes = ([shape[1:] for shape in batch_specs.shapes_of(some)] for some in (specs, others))
    both = batch_specs.holding_both(specs, others) if shapes == its_shapes else None
    return specs if both is None else both
