"""A model without a graph that plans by the calls of its layers when it is first trained.

Its `train_step` is replaced, where batch, loss and optimizer are seen, and its `call`, for loops of the user's own.
What comes first makes the plan. One plan holds for all calls in which the same weights train, and with a budget for all
that are no larger: which layers recompute does not depend on the signature.
"""

import dataclasses
import threading
from collections.abc import Callable, Hashable
from typing import Any

import keras
import tensorflow as tf

from tfgc._calls.call_plans import CallPlans, NoLayersError
from tfgc._calls.tracing import Arguments
from tfgc._core.plan import Plan
from tfgc._core.recently_used import RecentlyUsed
from tfgc._errors import NothingSavedWarning, OpenSizesWarning, OptionError, warn
from tfgc._framework import fit_loop, isolated_traces, private_api
from tfgc._planning import batch_specs, first_batch
from tfgc._planning.first_batch import PlannedStep, Request
from tfgc._replay import call_checks
from tfgc._training import layer_calls, plan_report
from tfgc._training.own_steps import InStep
from tfgc._training.training_state import TrainingState

# States in which weights train by turns, whose plans are kept.
_MOST_PLANS = 8


class FirstStep:
    """Replaces `call` and `train_step` of any model until it is disabled; `latest` is its plan, None before a step."""

    def __init__(self, model: keras.Model, request: Request, verbose: bool, run_options: dict[str, Any]) -> None:
        self.latest: PlannedStep | None = None
        self.has_budget = request.budget is not None
        self._model, self._request, self._verbose, self._run_options = model, request, verbose, run_options
        self._call: Callable = model.call
        self._train_step: Callable = model.train_step
        self._specs: Any = None
        self._training = TrainingState(model)
        # What was planned for a state in which the model trains, graph or XLA, and the batch it was planned for.
        self._made: RecentlyUsed[Hashable, tuple[PlannedStep, Any]] = RecentlyUsed(_MOST_PLANS)
        self._state: Hashable = None
        self._is_plain = self._has_warned = False
        self._in_step = InStep[bool]()
        self._lock = threading.RLock()

    def plans(self) -> CallPlans:
        """The plans for the batch that the one in use was made for."""
        xla = self.latest is not None and self.latest.mode == "xla"
        return CallPlans(self._model, self._specs, self._request.layers, xla=xla)

    def replanned(self, plan: Plan, predicted_bytes: int) -> None:
        """Note that the model runs by another plan now."""
        assert self.latest is not None
        self._keep(self.latest.by(plan, predicted_bytes), self._specs, self._state)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the model's `call`."""
        # A call inside of the model's own step is part of what was planned, however many rows it has.
        is_covered = self._in_step.here or call_checks.is_empty(args, kwargs)
        if plan_report.may_plan(kwargs.get("training")) and not is_covered:
            self._plan_for(Arguments(args, kwargs))
        return self._call(*args, **kwargs)

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the model's `train_step`; of one that takes more than a batch, calls of the model are planned."""
        if len(args) + len(kwargs) != 1 or isolated_traces.is_watched() or self._in_step.here is not None:
            return self._train_step(*args, **kwargs)
        self._plan_for(*args, *kwargs.values())
        return self._in_step.run(True, self._train_step, *args, **kwargs)

    call.is_patched_call = train_step.is_patched_call = True

    @tf.autograph.experimental.do_not_convert
    def _plan_for(self, example: Any) -> None:
        batch = next((tensor.shape[0] for tensor in batch_specs.tensors(example) if tensor.shape.rank), None)
        batch = batch or fit_loop.batch_size()
        shapes = batch_specs.shapes_in(example, batch)
        if self._holds_for(shapes):  # need not wait while another thread plans
            return
        with self._lock:  # reentrant, as a step calls the model
            if not self._holds_for(shapes) and not self._uses_known(shapes):
                self._plan(example, batch, shapes)

    def _state_now(self) -> Hashable:
        return self._training.now, private_api.in_xla()

    def _holds_for(self, shapes: batch_specs.Shapes) -> bool:
        if self._is_plain or self.latest is None:
            return self._is_plain
        return self._state == self._state_now() and self.latest.holds_for(shapes, self._request.budget)

    def _uses_known(self, shapes: batch_specs.Shapes) -> bool:
        """Run by the plan for a state in which the model trained before; False if there is none that holds."""
        state = self._state_now()
        made, specs = self._made.get(state) or (None, None)
        if made is None or not made.holds_for(shapes, self._request.budget):
            return False
        self._run_by(made)
        self._keep(made, specs, state)
        return True

    def _keep(self, made: PlannedStep, specs: Any, state: Hashable) -> None:
        self.latest, self._specs, self._state = made, specs, state
        self._made[state] = made, specs

    def _run_by(self, made: PlannedStep) -> None:
        if made.unchanged is None:
            layer_calls.run_by_calls(self._model, made.plan, **self._run_options)
        else:
            layer_calls.restore_parts(self._model)

    def _plan(self, example: Any, batch: int | None, shapes: batch_specs.Shapes) -> None:
        specs = batch_specs.specs(example, batch)
        if specs is None:
            self._refuse_open_sizes(_fixing_sizes(example, batch))
            return
        mode = plan_report.mode_of_call(self._run_options["compile_segments"])
        try:
            made = plan_report.planned(
                self._model,
                lambda: first_batch.plan_step_by_calls(self._model, specs, mode, self._request),
                verbose=self._verbose,
            )
        except NoLayersError as error:
            if self._request.budget is not None:
                raise
            self._is_plain = True
            warn(f"{error}. It trains as before", NothingSavedWarning)
            return
        self._run_by(made)
        self._training.look()  # The model may have no weights before it is planned.
        self._keep(dataclasses.replace(made, shapes=shapes), specs, self._state_now())
        plan_report.report(self._model.name, made, verbose=self._verbose)

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


def _fixing_sizes(example: Any, batch_size: int | None) -> str:
    """How the open sizes of a batch become known."""
    ways = [] if batch_size else ["with dataset.batch(n, drop_remainder=True)"]
    if any(None in tensor.shape[1:] for tensor in batch_specs.tensors(example) if tensor.shape.rank):
        ways.append("by padding to one size")
    return " and ".join(ways)
