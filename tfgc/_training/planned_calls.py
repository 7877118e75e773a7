"""A model that plans when it is first trained: its `train_step` as a whole, or each kind of call of it as a pair.

Then all that a plan depends on is there to be seen: sizes, batch, mode, what trains, and the memory that is free.
"""

import dataclasses
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.plan import Plan
from tfgc._core.recently_used import RecentlyUsed
from tfgc._errors import OptionError, TfgcError
from tfgc._framework import fit_loop, keras_models, model_checks, private_api, whole_steps
from tfgc._pairs.code import Code
from tfgc._pairs.pair import Shapes
from tfgc._pairs.pairs import Pairs
from tfgc._pairs.reading import Reading
from tfgc._pairs.segments import Planned
from tfgc._planning import batch_specs, budgets, function_trace
from tfgc._planning.batch_specs import Signature
from tfgc._planning.promised import PlannedStep, planned_step
from tfgc._planning.request import Request
from tfgc._planning.step_plans import StepPlans
from tfgc._planning.trace_plans import TracePlans
from tfgc._tracing import functional_graphs
from tfgc._training import layer_calls, out_of_memory, plan_report
from tfgc._training.planned_call import PlannedCall
from tfgc._training.training_state import TrainingState
from tfgc._training.whole_step import PART, WholeStep

_MOST_PLANS = 8  # that a model keeps, of those that were used last
_OPEN = (
    "budget={0!r}: the step is traced without a batch size or with other open sizes, so its bytes are not known. Fix "
    "them in the data, with dataset.batch(n, drop_remainder=True) and by padding to one size, or plan ahead: "
    "tfgc.enable(model, tfgc.plan(model, example=batch, budget={0!r}))"
)


class PlannedCalls:
    """Replaces `call` and `train_step` of an enabled model until it is disabled.

    Attributes:
        whole: What runs its `train_step` as a whole.
        has_budget: Whether a budget says how it is planned.
        note: Why it trains as before although it is enabled; None if no step has shown that.
    """

    def __init__(self, model: keras.Model, request: Request, verbose: bool | None) -> None:
        self._model, self._verbose, self._training = model, verbose, TrainingState(model)
        self._call, self._train_step = model.call, model.train_step
        self.has_budget = request.budget is not None
        self.whole = WholeStep(model, request, self._training, verbose)
        self._request = self.whole.request
        self._made: RecentlyUsed[Signature, PlannedCall] = RecentlyUsed(_MOST_PLANS)
        self._latest: Signature | None = None
        self._newest: PlannedCall | None = None  # planned last, for a call that may have failed since
        self._pairs = Pairs(
            self._call, model.name, Code(model), self._plan, is_bounded=self.has_budget, otherwise=self._by_parts
        )
        self._is_in_parts = False
        self._rows, self._is_eager = None, False  # of the latest call
        self.note: str | None = None

    @property
    def plans(self) -> dict[Signature, PlannedStep]:
        """The plans that were made, by signature."""
        return {key: planned.measured for key, planned in self._made.copy().items()} | self.whole.made.copy()

    @property
    def latest(self) -> PlannedStep | None:
        """The plan of the latest call or step; None before the first one."""
        return None if self._latest is None else self.plans.get(self._latest)

    def to_explain(self) -> out_of_memory.StepByPlan | None:
        """The latest step as its plan sees it, to say why it ran out of memory."""
        if self.whole.latest is not None:
            return self.whole.to_explain()
        found = self._newest if self._latest is None else self._made.get(self._latest)
        plans, optimizer = found and found.plans, getattr(self._model, "optimizer", None)
        return plans and out_of_memory.step_as_a_whole(self._model, optimizer, plans)

    def use(self, plan: Plan) -> None:
        """Run the latest call, and calls like it, by another plan."""
        self._request = dataclasses.replace(self._request, less=plan)
        self._pairs.forget()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the model's `call`; those that do not train run the original."""
        self.note = PART if whole_steps.is_here() else self.note
        if not plan_report.may_plan(kwargs.get("training")) or model_checks.is_empty(args, kwargs):
            return self._call(*args, **kwargs)
        model_checks.refuse_tf1_graph(f"the enabled {self._model.name!r}")
        if any(tf.is_tensor(t) and t.shape.rank and t.shape[0] is None for t in tf.nest.flatten((args, kwargs))):
            self._rows = fit_loop.batch_size()
        self._is_eager = tf.executing_eagerly()
        try:
            made, pair = self._pairs.run(args, kwargs)
        except TfgcError as error:
            private_api.let_pass(error)
            raise
        if pair is not None and pair.directions.planned is not None:
            self._note(pair.directions.planned, self._signature(args, kwargs))
        return made

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Replace the model's `train_step`, which is planned as a whole where that is traced in a graph."""
        is_part = len(args) + len(kwargs) != 1 or whole_steps.is_part()
        if is_part or not self.whole.applies((*args, *kwargs.values())):
            self._plan_parts(is_part or keras_models.has_own_call(self._model))
            return self._train_step(*args, **kwargs)
        logs = self.whole.run(self._train_step, *args, *kwargs.values())
        self._latest = self.whole.latest
        return logs

    call.is_patched_call = train_step.is_patched_call = True

    def _plan_parts(self, is_called: bool) -> None:
        """Let the models that a model trains without a call of its own, as a GAN does, be planned for themselves."""
        own = Request("optimal") if self.has_budget or self._request.strategy == "manual" else self._request
        for part in () if is_called else keras_models.held_layers(self._model):
            if isinstance(part, keras.Model) and not functional_graphs.is_patched_call(part):
                functional_graphs.replace_method(part, "call", PlannedCalls(part, own, self._verbose).call)
                self.note = "its train_step trains models that it holds, each of which is planned for itself"

    def _by_parts(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call whose code cannot be traced, with each layer that the model holds as a pair of its own."""
        if not self._is_in_parts:
            self._is_in_parts = True
            layer_calls.replace_calls(self._model, [p for p in keras_models.held_layers(self._model) if p.weights])
        return self._call(*args, **kwargs)

    def _signature(self, args: tuple, kwargs: dict[str, Any]) -> Signature:
        flat = tf.nest.flatten((args, kwargs), expand_composites=True)
        flat = [t for t in flat if (tf.is_tensor(t) or isinstance(t, np.ndarray)) and tf.TensorShape(t.shape).rank]
        self._training.look()
        mode, policy = plan_report.mode_of_call(), self._model.dtype_policy.name
        return Signature(batch_specs.sizes_of(flat), mode, policy, training=self._training.now)

    def _note(self, planned: PlannedCall, signature: Signature) -> None:
        """Note by which plan a call runs, and say so where it is a new one."""
        planned.sizes = planned.sizes or signature.sizes  # of the first of the calls that it is for
        planned.step = dataclasses.replace(planned.step, mode=signature.mode)
        planned.weights = len(self._model.weights)
        self._made.keep(lambda one: one.weights == planned.weights)
        self._latest = dataclasses.replace(signature, sizes=planned.sizes)
        self._made[self._latest] = dataclasses.replace(planned)
        if not planned.is_reported:
            planned.is_reported = True
            plan_report.report(self._model.name, planned.step, verbose=self._verbose)

    def _plan(self, reading: Reading, shapes: Shapes) -> Planned:
        """The step that runs of the trace of a call, and what is said of it."""
        start, trace = time.perf_counter(), reading.trace
        sizes = [function_trace.filled(shape, self._rows) for shape in shapes]
        is_known = all(s.is_fully_defined() for s in sizes)
        if not all(t.shape.is_fully_defined() for t in trace.function.graph.inputs[: reading.count]):
            if self.has_budget and not is_known and self._request.plan is None:
                raise OptionError(_OPEN.format(self._request.budget))
            trace = trace.counting(sizes)
        fixed, of_call = budgets.fixed_bytes(self._model), StepPlans(reading.as_run(trace))
        request = self._request.after(c.plans.watch.ratio for c in self._made.copy().values())
        plans = TracePlans(trace, request, sizes, self._is_eager, fixed, of_call)
        step = planned_step(plans, time.perf_counter() - start, tuple(shape or () for shape in shapes))
        if not is_known:
            step = dataclasses.replace(step, predicted_bytes=None, plain_bytes=None)
        self._newest = call = PlannedCall(step, plans, name=self._model.name, verbose=self._verbose)
        return call.runs
