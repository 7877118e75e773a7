"""A model without a graph that plans by the calls of its layers when it is first trained.

Its `train_step` is replaced, where batch, loss and optimizer are seen, and its `call`, for loops of the user's own.
What comes first makes the plan. One plan holds for all calls in which the same weights train: which layers recompute
does not depend on the signature. With a budget it holds for those of one kind, which have the same structure and flags,
that are no larger.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfgc._calls.call_plans import CallPlans, NoLayersError
from tfgc._calls.tracing import Arguments
from tfgc._core.plan import Plan
from tfgc._core.recently_used import RecentlyUsed
from tfgc._errors import NothingSavedWarning, OpenSizesWarning, OptionError, warn
from tfgc._framework import fit_loop, private_api, whole_steps
from tfgc._planning import batch_specs, first_batch
from tfgc._planning.batch_specs import Shapes
from tfgc._planning.planner import Request
from tfgc._replay import call_checks
from tfgc._training import layer_calls, plan_report
from tfgc._training.own_steps import InStep
from tfgc._training.training_state import TrainingState
from tfgc._training.whole_step import PART, WholeStep

# Plans that are kept, one for each state in which the model trains.
_MOST_PLANS = 8


class FirstStep:
    """Replaces `call` and `train_step` of any model until it is disabled; `latest` is its plan, None before a step."""

    def __init__(self, model: keras.Model, request: Request, verbose: bool) -> None:
        self.latest: first_batch.PlannedStep | None = None
        self.has_budget = request.budget is not None
        self._model, self._request, self._verbose = model, request, verbose
        self._training = TrainingState(model)
        self._call: Callable = model.call
        self._train_step: Callable = model.train_step
        self._specs: Any = None
        # By states in which the model trains, in a graph or under XLA, and kinds of calls.
        self._made: RecentlyUsed[Hashable, _Made] = RecentlyUsed(_MOST_PLANS)
        self._state: Hashable = None
        self._kinds: list[Hashable] = []  # that were seen, the latest last
        self._is_plain = self._has_warned = self._is_part = False
        self._in_step = InStep[bool]()
        self._lock = threading.RLock()
        self.whole = WholeStep(model, request, self._training, verbose)

    @property
    def note(self) -> str | None:
        """Why the model trains as before although it is enabled; None if no step has shown that."""
        if self._is_plain:
            return "trains as before: it calls no layers"
        if self._is_part:
            return PART
        return "trains as before: sizes of the batch are open where its step is traced" if self._has_warned else None

    def plans(self) -> CallPlans:
        """The plans for the batch that the one in use was made for."""
        xla = self.latest is not None and self.latest.mode == "xla"
        return CallPlans(self._model, self._specs, self._request.layers, xla=xla)

    def replanned(self, plan: Plan, predicted_bytes: int) -> None:
        """Note that the model runs by another plan now."""
        assert self.latest is not None
        by_calls = layer_calls.ByCalls(self._model, plan)
        self._keep(_Made(self.latest.by(plan, predicted_bytes), self._specs, by_calls), self._state)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the model's `call`."""
        # A call inside of the model's own step is part of what was planned, however many rows it has.
        is_covered = self._in_step.here or call_checks.is_empty(args, kwargs)
        self._is_part = self._is_part or whole_steps.is_here()
        if plan_report.may_plan(kwargs.get("training")) and not is_covered:
            self.plan_for(Arguments(args, kwargs))
        return self._call(*args, **kwargs)

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the model's `train_step`; of one that takes more than a batch, calls of the model are planned."""
        if len(args) + len(kwargs) != 1 or whole_steps.is_part() or self._in_step.here is not None:
            return self._train_step(*args, **kwargs)
        if self.whole.applies((*args, *kwargs.values())):
            logs = self.whole.run(self._train_step, *args, *kwargs.values())
            self.latest = self.whole.latest and self.whole.made.get(self.whole.latest)
            return logs
        self.plan_for(*args, *kwargs.values())
        return self._in_step.run(True, self._train_step, *args, **kwargs)

    call.is_patched_call = train_step.is_patched_call = True

    @tf.autograph.experimental.do_not_convert
    def plan_for(self, example: Any) -> None:
        """Plan for a batch or the `Arguments` of a call, which builds the model, unless a plan for it is in use."""
        batch = next((tensor.shape[0] for tensor in batch_specs.tensors(example) if tensor.shape.rank), None)
        batch = batch or fit_loop.batch_size()
        shapes = batch_specs.shapes_in(example, lambda: batch)
        kind = batch_specs.kind(example) if self.has_budget else None
        if self._holds_for(shapes, kind):  # need not wait while another thread plans
            return
        with self._lock:  # reentrant, as a step calls the model
            kind = self._known_kind(kind)
            if self._holds_for(shapes, kind):
                return
            made = self._made.get(self._state_now(kind))
            if made is not None and made.step.holds_for(shapes, self._request.budget):
                self._run_by(made, kind)
            else:
                self._plan(example, batch, shapes, kind, made)

    def _known_kind(self, kind: Hashable) -> Hashable:
        """The kind of a call, or the latest known one, as whose it counts if there are many: a number counts steps."""
        if kind in self._kinds:
            self._kinds.remove(kind)
        elif len(self._kinds) == _MOST_PLANS:
            kind = self._kinds.pop()
        self._kinds.append(kind)
        return kind

    def _state_now(self, kind: Hashable) -> Hashable:
        return self._training.now, private_api.in_xla(), kind

    def _holds_for(self, shapes: Shapes, kind: Hashable) -> bool:
        if self._is_plain or self.latest is None:
            return self._is_plain
        return self._state == self._state_now(kind) and self.latest.holds_for(shapes, self._request.budget)

    def _keep(self, made: "_Made", state: Hashable) -> None:
        self.latest, self._specs, self._state = made.step, made.specs, state
        self._made[state] = made

    def _run_by(self, made: "_Made", kind: Hashable) -> None:
        layer_calls.run_by(self._model, made.by_calls)
        self._keep(made, self._state_now(kind))

    def _plan(self, example: Any, batch: int | None, shapes: Shapes, kind: Hashable, before: "_Made | None") -> None:
        """Plan, with the plan `before` for the state in which the model trains, which does not hold."""
        specs = batch_specs.specs(example, batch)
        if specs is None:
            self._refuse_open_sizes(batch_specs.fixing_sizes(example, batch))
            return
        others = (before.specs, before.step.shapes) if before else None
        try:
            planned = first_batch.planned_with(self._planned, others, specs, shapes)
        except NoLayersError as error:
            if self._request.budget is not None:
                raise
            self._is_plain = True
            warn(f"{error}. It trains as before", NothingSavedWarning)
            return
        self._training.look()  # The model may have no weights before it is planned.
        self._run_by(planned, kind)
        plan_report.report(self._model.name, planned.step, verbose=self._verbose)

    def _planned(self, specs: Any, shapes: Shapes) -> "_Made":
        mode = plan_report.mode_of_call()
        by_request = functools.partial(first_batch.plan_step_by_calls, self._model, specs, mode)
        earlier = [made.step for made in self._made.copy().values()]
        plan = functools.partial(first_batch.in_share, by_request, self._request, earlier, shapes)
        step = dataclasses.replace(plan_report.planned(self._model, plan, verbose=self._verbose), shapes=shapes)
        is_on = step.unchanged is None
        return _Made(step, specs, layer_calls.ByCalls(self._model, step.plan) if is_on else None)

    def _refuse_open_sizes(self, fix: str) -> None:
        if self._request.budget is not None:
            raise OptionError(
                f"budget={self._request.budget!r}: sizes of the batch are open where the step is traced, so its bytes "
                f"are not known. Fix them in the data, {fix}, or plan ahead: "
                f"tfgc.enable(model, tfgc.plan(model, example=batch, budget={self._request.budget!r}))"
            )
        if self._has_warned:
            return
        self._has_warned = True
        warn(
            f"nothing is recomputed in {self._model.name!r}: sizes of the batch are open where the step is traced, so "
            "a plan may need more than storing everything. To save memory, fix them in the data, "
            f"{fix}, or plan ahead: tfgc.enable(model, tfgc.plan(model, example=batch))",
            OpenSizesWarning,
        )


class _Made(NamedTuple):
    """A plan, the batch that it was made for, and what runs it; None: the model's original code."""

    step: first_batch.PlannedStep
    specs: Any
    by_calls: layer_calls.ByCalls | None
