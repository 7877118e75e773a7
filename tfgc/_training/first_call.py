"""A model's `call` that plans when it is first called for training, and its own `train_step`, if it has one.

Then all that a plan depends on is there to be seen: sizes, batch, mode, the compiled loss and optimizer, free
memory. Each signature (sizes without the batch, dtypes, mode, dtype policy, what trains) has a plan of its own.

Planning runs in a thread of its own, out of reach of the tape, graph, scopes and call around it. Threads that call at
the same time wait and find the plan.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import keras

from tfgc._calls import tracing
from tfgc._core.modes import Mode
from tfgc._core.plan import Plan
from tfgc._core.recently_used import RecentlyUsed
from tfgc._framework import fit_loop, whole_steps
from tfgc._planning import batch_specs, first_batch
from tfgc._planning.batch_specs import Shapes, Signature
from tfgc._planning.planner import Request
from tfgc._replay import call_checks
from tfgc._tracing import example_sizes, keras_graph
from tfgc._training import layer_calls, plan_report
from tfgc._training.own_steps import InStep, StepHere, TracedSteps
from tfgc._training.segment_runner import Runner
from tfgc._training.training_state import TrainingState
from tfgc._training.whole_step import PART, WholeStep

# Plans that a model keeps, of hundreds of lengths that texts may have; beyond, shorter ones run by those of longer.
_MOST_PLANS = 8


class FirstCall:
    """Replaces the `call` of a functional model, and the `train_step` that its class defines, until it is disabled.

    The model may not be built yet.
    """

    def __init__(self, model: keras.Model, request: Request, verbose: bool) -> None:
        self._model, self._request, self._verbose = model, request, verbose
        self._training, self._traced = TrainingState(model), TracedSteps(model, verbose)
        self.has_budget = request.budget is not None
        self._original = functools.partial(type(model).call, model)
        self._made: RecentlyUsed[Signature, _Made] = RecentlyUsed(_MOST_PLANS)
        self._latest: Signature | None = None
        self._in_layers: layer_calls.ByCalls | None = None
        self._train_step: Callable = model.train_step
        self._in_step, self._lock = InStep[StepHere](), threading.Lock()
        self.whole = WholeStep(model, request, self._training, verbose)
        self.note: str | None = None  # why the model trains as before; None if no step has shown that

    @property
    def plans(self) -> dict[Signature, first_batch.PlannedStep]:
        """The plans that were made, by signature."""
        return {signature: made.step for signature, made in self._made.copy().items()} | self.whole.made.copy()

    @property
    def latest(self) -> first_batch.PlannedStep | None:
        """The plan of the latest call; None before the first one."""
        return None if self._latest is None else self.plans.get(self._latest)

    @property
    def latest_made(self) -> "_Made | None":
        """The same with what runs the call."""
        return None if self._latest is None else self._made.get(self._latest)

    def replanned(self, plan: Plan, predicted_bytes: int) -> None:
        """Run the latest call by another plan, and the calls that are planned as parts of the same step."""
        latest = self.latest
        assert latest is not None
        for signature, made in self._made.copy().items():
            is_part = latest.own_step is not None and made.step.own_step == latest.own_step
            if signature == self._latest or is_part:
                if made.runner is not None:
                    made.runner.use(plan)
                step = made.step.by(plan, predicted_bytes)
                self._made[signature] = dataclasses.replace(made, step=step, by_calls=self._by_calls(plan))

    def _by_calls(self, plan: Plan) -> layer_calls.ByCalls | None:
        return layer_calls.ByCalls(self._model, plan) if plan.calls else None

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **context: Any) -> Any:
        """Replace the model's `call`; those that do not train, or have `context` arguments, run the original."""
        self.note = PART if whole_steps.is_here() else self.note
        if context or not plan_report.may_plan(training) or call_checks.is_empty(inputs):
            return self._original(inputs, training=training, mask=mask, **context)
        call_checks.refuse_tf1_graph(f"the enabled {self._model.name!r}")
        return self._call_for(inputs)(inputs, training=training, mask=mask)

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the model's own `train_step`, whose calls of the model are planned as parts of it."""
        if len(args) + len(kwargs) != 1 or whole_steps.is_part() or self._in_step.here is not None:
            return self._train_step(*args, **kwargs)
        if self.whole.applies((*args, *kwargs.values())):
            logs, self._latest = self.whole.run(self._train_step, *args, *kwargs.values()), self.whole.latest
            return logs
        if not tracing.has_own_step(self._model):
            return self._train_step(*args, **kwargs)
        xla = plan_report.mode_of_call() == "xla"
        latest, (batch,) = self.latest, (*args, *kwargs.values())
        before = latest.own_step if self.has_budget and latest else None
        here = self._traced.traced(batch, before, xla=xla, state=self._training.now, is_planned=self._are_planned)
        logs, self.note = self._in_step.run(here, self._train_step, *args, **kwargs), self.note or here.note
        return logs

    def _are_planned(self, batch: Any, signatures: Iterable[Signature]) -> bool:
        """Whether calls with these signatures, in a step on this batch, run by plans for the model as it is."""
        made = [self._made.get(signature) for signature in signatures]
        return all(one is not None and self._holds(one, (), batch) for one in made)

    call.is_patched_call = train_step.is_patched_call = True

    def _call_for(self, inputs: Any) -> Callable:
        flat, here = [tensor for tensor in keras.tree.flatten(inputs) if tensor is not None], self._in_step.here
        sizes = batch_specs.sizes_of(flat)
        mode, policy = plan_report.mode_of_call(), self._model.dtype_policy.name
        shapes = batch_specs.shapes_in(flat, fit_loop.batch_size)
        with self._lock:
            signature = Signature(sizes, mode, policy, in_step=here is not None, training=self._training.now)
            signature, made = self._made_for(signature, shapes, inputs)
            self._put_into_layers(made.by_calls)
        self._latest = signature
        if here is not None:
            here.calls.add(signature)
        return self._original if made.runner is None else made.runner.call

    def _put_into_layers(self, by_calls: layer_calls.ByCalls | None) -> None:
        """Let the layers inside run by a plan by calls; as they were, if the plan of this call is none."""
        if by_calls is self._in_layers:
            return
        layer_calls.run_by(self._model, by_calls)
        self._in_layers = by_calls

    def _made_for(self, signature: Signature, shapes: Shapes, inputs: Any) -> "tuple[Signature, _Made]":
        """The signature whose plan a call runs by, its own or one that covers it, and that plan."""
        made = self._known(signature, shapes)
        if made is not None:
            return signature, made
        plans = self._made.copy()
        covering = next((one for one in plans if one.covers(signature)), None)
        made = self._known(covering, shapes) if covering and len(plans) >= _MOST_PLANS else None
        if covering is not None and made is not None:
            return covering, made
        made = self._plan(signature, inputs, shapes)
        self._training.look()  # A model without weights is built by then, and layers may have been added.
        signature = dataclasses.replace(signature, training=self._training.now)
        self._made.keep(lambda one: one.program.is_current)
        self._made[signature] = made
        plan_report.report(self._model.name, made.step, verbose=self._verbose)
        return signature, made

    def _known(self, signature: Signature, shapes: Shapes) -> "_Made | None":
        """The plan of a signature, if it holds for inputs of such shapes, and the layers that the model has by now."""
        made, here = self._made.get(signature), self._in_step.here
        return made if made and self._holds(made, shapes, here and here.step and here.step.batch) else None

    def _holds(self, made: "_Made", shapes: Shapes, own_step: Any) -> bool:
        return made.program.is_current and made.step.holds_for(shapes, self._request.budget, own_step)

    def _plan(self, signature: Signature, inputs: Any, shapes: Shapes) -> "_Made":
        inputs, batch_size = example_sizes.as_declared(self._model, inputs), shapes[0][0] if shapes else None
        specs = keras.tree.map_structure(lambda t: None if t is None else tracing.spec(t, batch_size), inputs)
        made = self._made.get(signature)
        before = (made.specs, made.step.shapes) if made and made.program.is_current else None
        return first_batch.planned_with(functools.partial(self._planned, signature.mode), before, specs, shapes)

    def _planned(self, mode: Mode, specs: Any, shapes: Shapes) -> "_Made":
        own_step = self._in_step.here and self._in_step.here.step

        def planned() -> _Made:
            def plan(request: Request) -> first_batch.PlannedStep:
                return first_batch.plan_step(self._model, specs, mode, request, own_step)

            step = first_batch.in_share(plan, self._request, self.plans.values(), shapes)
            step = dataclasses.replace(step, shapes=shapes)
            if step.unchanged is None and not step.plan.calls:
                runner = Runner(self._model, step.plan, trained=self._training.trained)
                return _Made(step, runner.program, specs, runner)
            return _Made(step, keras_graph.Program(self._model), specs, by_calls=self._by_calls(step.plan))

        return plan_report.planned(self._model, planned, verbose=self._verbose)


@dataclasses.dataclass(frozen=True)
class _Made:
    """The plan of a signature, the graph and inputs that it was made for, and what runs it; None: original code."""

    step: first_batch.PlannedStep
    program: keras_graph.Program
    specs: Any
    runner: Runner | None = None
    by_calls: layer_calls.ByCalls | None = None
