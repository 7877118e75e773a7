"""A model's `call` that plans when it is first called for training.

Then all that a plan depends on is there to be seen: sizes, batch, mode, the compiled loss and optimizer, free
memory. Each signature (sizes without the batch, dtypes, mode) has a plan of its own.

Planning runs in a thread of its own, so that nothing of the call around it reaches it: no tape, graph, name scope,
autocast or call context. Threads that call at the same time wait and find the plan.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from tfgc._calls import own_step_plans
from tfgc._calls.own_step_plans import OwnStepPlans
from tfgc._core.plan import Plan
from tfgc._core.recently_used import RecentlyUsed
from tfgc._framework import fit_loop, isolated_traces
from tfgc._planning import first_batch
from tfgc._planning.first_batch import PlannedStep, Request
from tfgc._replay import call_checks
from tfgc._tracing import example_sizes, keras_graph
from tfgc._training import batch_specs, layer_calls, plan_report
from tfgc._training.run_by_calls import run_by_calls
from tfgc._training.segment_runner import Runner
from tfgc._training.signatures import Signature

# Plans that a model keeps. A text model in an eager loop may see hundreds of lengths: where the limit is reached, a
# shorter one runs by the plan of a longer one.
_MOST_PLANS = 8


class FirstCall:
    """Replaces the `call` of a model until it is disabled.

    Args:
        model: A functional or Sequential model, which may not be built yet.
        request: How to plan.
        verbose: Whether each plan is reported in a line.
        run_options: Options of a `Runner`.
    """

    def __init__(self, model: keras.Model, request: Request, verbose: bool, run_options: dict[str, Any]) -> None:
        self._model, self._request, self._verbose, self._run_options = model, request, verbose, run_options
        self._original = functools.partial(type(model).call, model)
        self._compiled: bool = run_options["compile_segments"]
        self._made: RecentlyUsed[Signature, _Made] = RecentlyUsed(_MOST_PLANS)
        self._latest: Signature | None = None
        self._in_layers: Plan | None = None
        self._train_step: Callable = model.train_step
        self._batches: dict[int, Any] = {}  # of each thread that runs `train_step`
        self._lock = threading.Lock()

    @property
    def plans(self) -> dict[Signature, PlannedStep]:
        """The plans that were made, by signature."""
        return {signature: made.step for signature, made in self._made.copy().items()}

    @property
    def latest(self) -> PlannedStep | None:
        """The plan of the latest call; None before the first one."""
        made = self._latest_made()
        return made and made.step

    @property
    def latest_runner(self) -> Runner | None:
        """What runs the latest call; None if that ran the original code."""
        made = self._latest_made()
        return made and made.runner

    def replanned(self, plan: Plan, predicted_bytes: int) -> None:
        """Note that what the latest call runs by is another plan now."""
        made = self._latest_made()
        assert made is not None
        assert self._latest is not None
        self._made[self._latest] = _Made(made.step.by(plan, predicted_bytes), made.program, made.runner)

    def _latest_made(self) -> "_Made | None":
        return None if self._latest is None else self._made.get(self._latest)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Replace the model's `call`; calls that do not train run the original."""
        if not plan_report.may_plan(training) or call_checks.is_empty(inputs):
            return self._original(inputs, training=training, mask=mask)
        call_checks.refuse_tf1_graph(f"the enabled {self._model.name!r}")
        return self._call_for(inputs)(inputs, training=training, mask=mask)

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the model's own `train_step`, whose calls of the model are planned as parts of it."""
        if len(args) + len(kwargs) != 1 or isolated_traces.is_watched():
            return self._train_step(*args, **kwargs)
        thread = threading.get_ident()
        (self._batches[thread],) = (*args, *kwargs.values())
        try:
            return self._train_step(*args, **kwargs)
        finally:
            self._batches.pop(thread, None)

    call.is_patched_call = train_step.is_patched_call = True

    def plans_of_own_step(self) -> OwnStepPlans:
        """The plans for the model's own `train_step`, one of which the latest call runs by."""
        latest = self.latest
        assert latest is not None
        plans = own_step_plans.plans_for(self._model, latest.own_step, xla=latest.mode == "xla")
        assert plans is not None
        return plans

    def _call_for(self, inputs: Any) -> Callable:
        flat = [tensor for tensor in keras.tree.flatten(inputs) if tensor is not None]
        shapes = [tuple(tensor.shape) for tensor in flat]
        sizes = tuple((shape[1:], keras.backend.standardize_dtype(t.dtype)) for shape, t in zip(shapes, flat))
        signature = Signature(sizes, plan_report.mode_of_call(self._compiled), self._model.dtype_policy.name)
        batch_size = shapes[0][0] if shapes[0] else None
        self._latest, made = self._made_for(signature, batch_size, inputs)
        with self._lock:
            self._put_into_layers(made.step)
        return self._original if made.runner is None else made.runner.call

    def _put_into_layers(self, planned: PlannedStep) -> None:
        """Let the layers inside run by a plan by calls; as they were, if the plan of this call is none."""
        plan = planned.plan if planned.unchanged is None and planned.plan.calls else None
        if plan is self._in_layers:
            return
        if plan is None:
            layer_calls.restore_parts(self._model)
        else:
            run_by_calls(self._model, plan, **self._run_options)
        self._in_layers = plan

    def _made_for(self, signature: Signature, batch_size: int | None, inputs: Any) -> "tuple[Signature, _Made]":
        """The signature whose plan a call runs by, its own or one that covers it, and that plan."""
        made = self._known(signature, batch_size)
        if made is not None:
            return signature, made
        with self._lock:
            made = self._known(signature, batch_size)
            if made is not None:  # another thread was faster
                return signature, made
            plans = self._made.copy()
            covering = next((one for one in plans if one.covers(signature)), None)
            made = self._known(covering, batch_size) if covering and len(plans) >= _MOST_PLANS else None
            if covering is not None and made is not None:
                return covering, made
            return signature, self._plan(signature, inputs, batch_size)

    def _known(self, signature: Signature, batch_size: int | None) -> "_Made | None":
        """The plan of a signature, if it holds for a batch and for the layers that the model has by now."""
        made = self._made.get(signature)
        holds = made is not None and made.program.is_current and made.step.holds_for(batch_size, self._request.budget)
        return made if holds else None

    def _plan(self, signature: Signature, inputs: Any, batch_size: int | None) -> "_Made":
        """Plan for `signature`."""
        if batch_size is None:
            batch_size = fit_loop.batch_size()
        inputs = example_sizes.as_declared(self._model, inputs)
        specs = keras.tree.map_structure(lambda t: None if t is None else batch_specs.spec(t, batch_size), inputs)
        batch = self._batches.get(threading.get_ident())
        own_step = None if batch is None else batch_specs.specs(batch, fit_loop.batch_size())

        def planned() -> _Made:
            step = first_batch.plan_step(self._model, specs, signature.mode, self._request, own_step)
            if step.unchanged is not None or step.plan.calls:
                return _Made(step, keras_graph.Program(self._model))
            runner = Runner(self._model, step.plan, **self._run_options)
            return _Made(step, runner.program, runner)

        made = plan_report.planned(self._model, planned, verbose=self._verbose)
        self._made[signature] = made
        plan_report.report(self._model.name, made.step, verbose=self._verbose)
        return made


class _Made(NamedTuple):
    """The plan of a signature, the graph that it was made for, and what runs it; None: the model's original code."""

    step: PlannedStep
    program: keras_graph.Program
    runner: Runner | None = None
