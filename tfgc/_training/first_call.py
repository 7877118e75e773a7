"""A model's `call` that plans when it is first called for training, and its own `train_step`, if it has one.

Then all that a plan depends on is there to be seen: sizes, batch, mode, the compiled loss and optimizer, free
memory. Each signature (sizes without the batch, dtypes, mode) has a plan of its own.

Planning runs in a thread of its own, so that nothing of the call around it reaches it: no tape, graph, name scope,
autocast or call context. Threads that call at the same time wait and find the plan.
"""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import keras

from tfgc._calls import tracing
from tfgc._calls.own_step_plans import OwnStep, OwnStepPlans
from tfgc._core.plan import Plan
from tfgc._core.recently_used import RecentlyUsed
from tfgc._framework import fit_loop, isolated_traces
from tfgc._planning import first_batch
from tfgc._planning.first_batch import PlannedStep, Request
from tfgc._replay import call_checks
from tfgc._tracing import example_sizes
from tfgc._training import batch_specs, layer_calls, plan_report
from tfgc._training.own_steps import InStep, StepHere, TracedSteps
from tfgc._training.run_by_calls import run_by_calls
from tfgc._training.segment_runner import Runner
from tfgc._training.signatures import Signature

# Plans that a model keeps. A text model in an eager loop may see hundreds of lengths: where the limit is reached, a
# shorter one runs by the plan of a longer one.
_MOST_PLANS = 8


class FirstCall:
    """Replaces the `call` of a model, and the `train_step` that its class defines, until it is disabled.

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
        self._traced = TracedSteps(model, verbose)
        self._in_step = InStep[StepHere]()
        self._lock = threading.Lock()

    @property
    def plans(self) -> dict[Signature, PlannedStep]:
        """The plans that were made, by signature."""
        return {signature: planned for signature, (planned, _) in self._made.copy().items()}

    @property
    def latest(self) -> PlannedStep | None:
        """The plan of the latest call; None before the first one."""
        made = self._latest_made()
        return made and made[0]

    @property
    def latest_runner(self) -> Runner | None:
        """What runs the latest call; None if that ran the original code."""
        made = self._latest_made()
        runner = getattr(made[1], "__self__", None) if made else None
        return runner if isinstance(runner, Runner) else None

    def holds_for(self, batch_size: int | None) -> bool:
        """Whether `fit` with batches of this size trains by the plan of the latest call; True if there is none."""
        return self.latest is None or self.latest.holds_in_fit(batch_size, self._request.budget)

    def replanned(self, plan: Plan, predicted_bytes: int) -> None:
        """Run the latest call by another plan, and the calls that are planned as parts of the same step."""
        latest = self.latest
        assert latest is not None
        for signature, (planned, call) in self._made.copy().items():
            is_part = latest.own_step is not None and planned.own_step == latest.own_step
            if signature == self._latest or is_part:
                runner = getattr(call, "__self__", None)
                if isinstance(runner, Runner):
                    runner.use(plan)
                self._made[signature] = planned.by(plan, predicted_bytes), call

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
        if len(args) + len(kwargs) != 1 or isolated_traces.is_watched() or self._in_step.here is not None:
            return self._train_step(*args, **kwargs)
        xla = plan_report.mode_of_call(self._compiled) == "xla"
        here = self._traced.traced(*args, *kwargs.values(), xla=xla, is_planned=self._are_planned)
        return self._in_step.run(here, self._train_step, *args, **kwargs)

    def _are_planned(self, batch: Any, signatures: Iterable[Signature]) -> bool:
        """Whether calls with these signatures, in a step on this batch, run by plans for the model as it is."""
        made = [self._made.get(signature) for signature in signatures]
        runners = [getattr(one[1], "__self__", None) for one in made if one is not None]
        return all(one is not None and one[0].holds_for(None, self._request.budget, batch) for one in made) and all(
            runner.is_current for runner in runners if isinstance(runner, Runner)
        )

    call.is_patched_call = train_step.is_patched_call = True

    def plans_of_own_step(self) -> OwnStepPlans:
        """The plans for the model's own `train_step` and the batch that the latest call was planned for."""
        latest = self.latest
        assert latest is not None
        xla = latest.mode == "xla"
        trace = tracing.own_step(self._model, latest.own_step, xla=xla)
        assert trace is not None
        return OwnStepPlans(self._model, latest.own_step, trace=trace, xla=xla)

    def _call_for(self, inputs: Any) -> Callable:
        flat = [tensor for tensor in keras.tree.flatten(inputs) if tensor is not None]
        shapes = [tuple(tensor.shape) for tensor in flat]
        sizes = tuple((shape[1:], keras.backend.standardize_dtype(t.dtype)) for shape, t in zip(shapes, flat))
        here = self._in_step.here
        mode, policy = plan_report.mode_of_call(self._compiled), self._model.dtype_policy.name
        signature = Signature(sizes, mode, policy, in_step=here is not None)
        batch_size = (shapes[0][0] if shapes[0] else None) or fit_loop.batch_size()
        self._latest, (planned, call) = self._made_for(signature, batch_size, inputs)
        if here is not None:
            here.calls.add(self._latest)
        with self._lock:
            self._put_into_layers(planned)
        return call

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
        """The plan of a signature, if it holds for a batch."""
        made, here = self._made.get(signature), self._in_step.here
        own_step = None if here is None or here.step is None else here.step.batch
        return made if made is not None and made[0].holds_for(batch_size, self._request.budget, own_step) else None

    def _plan(self, signature: Signature, inputs: Any, batch_size: int | None) -> "_Made":
        """Plan for `signature`."""
        inputs = example_sizes.as_declared(self._model, inputs)
        specs = keras.tree.map_structure(lambda t: None if t is None else batch_specs.spec(t, batch_size), inputs)

        def planned(own_step: OwnStep | None) -> _Made:
            made = first_batch.plan_step(self._model, specs, signature.mode, self._request, own_step)
            if made.unchanged is not None or made.plan.calls:
                return made, self._original
            return made, Runner(self._model, made.plan, replan=lambda: plan()[0].plan, **self._run_options).call

        def plan() -> _Made:
            here = self._in_step.here  # of the thread that calls the model
            own_step = None if here is None else here.step
            return plan_report.planned(self._model, lambda: planned(own_step), verbose=self._verbose)

        made, call = plan()
        self._made[signature] = made, call
        plan_report.report(self._model.name, made, verbose=self._verbose)
        return made, call


_Made: TypeAlias = tuple[PlannedStep, Callable]
