"""The `train_step` of an enabled model in a graph: traced once, rewritten, and built where Keras asks for it.

In a budget the peaks of real steps are read, and where another plan is better by them, what was traced is built again.
"""

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._errors import TfgcError
from tfgc._framework import concrete_functions, fit_loop, isolated_traces, memory_counts, private_api
from tfgc._planning import batch_specs
from tfgc._planning.batch_specs import Signature
from tfgc._planning.first_batch import PlannedStep
from tfgc._planning.planner import Request
from tfgc._run.emit import Built
from tfgc._step.trace import trace
from tfgc._training import function_plans, out_of_memory, plan_report
from tfgc._training.function_plans import TracePlans
from tfgc._training.training_state import TrainingState

# Plans that a model keeps, of those that were used last.
_MOST_PLANS = 8


class WholeStep:
    """Runs a model's `train_step` by a plan of all that it does."""

    def __init__(self, model: keras.Model, request: Request, training: TrainingState, verbose: bool) -> None:
        self._model, self._request, self._training, self._verbose = model, request, training, verbose
        self._plans: RecentlyUsed[Signature, TracePlans] = RecentlyUsed(_MOST_PLANS)
        self._again: set[Signature] = set()  # to be built again from what was traced
        self.made: RecentlyUsed[Signature, PlannedStep] = RecentlyUsed(_MOST_PLANS)
        self.latest: Signature | None = None
        self.is_off = request.strategy is not None or bool(request.options) or request.layers is not None

    def applies(self, batch: Any) -> bool:
        """Whether the step that is asked for here is one to trace apart, and its sizes are known."""
        if self.is_off or tf.executing_eagerly() or private_api.in_xla() or tf.distribute.has_strategy():
            return False
        shapes = batch_specs.shapes_in(batch, fit_loop.batch_size)
        return bool(shapes) and all(None not in shape for shape in shapes)

    def run(self, step: Callable, batch: Any) -> Any:
        """What the step gives for a batch, in the graph at hand."""
        start, shapes = time.perf_counter(), batch_specs.shapes_in(batch, fit_loop.batch_size)
        given = [t for t in tf.nest.flatten(batch, expand_composites=True) if isinstance(t, tf.Tensor)]
        signature = self._signature(batch)
        plans = self._plans.get(signature) if signature in self._again else None
        if plans is None:
            specs = tf.nest.map_structure(_spec, batch)
            found = trace(_Plainly(step), specs, rows=shapes[0][0])
            request = function_plans.Request(self._request.budget)
            plans = TracePlans(found, request, given, shapes[0][0], True)
            signature = self._signature(batch)  # a model without weights is built by then
            self._plans[signature] = plans
        self._again.discard(signature)
        planned = _planned(plans, time.perf_counter() - start, shapes)
        self.latest, self.made[signature] = signature, planned
        plan_report.report(self._model.name, planned, verbose=self._verbose)
        if plans.plan.unchanged:
            return concrete_functions.call_flat(plans.trace.function, given)
        made = Built(plans.trace, plans.plan.step, False)(given)
        return plans.trace.function.function_type.pack_output(made)

    def measured(self, run: Callable[[], Any]) -> tuple[Any, bool]:
        """What a step gives, and whether its peak shows that another plan is better, by which it is to be built."""
        plans = None if self.latest is None else self._plans.get(self.latest)
        if plans is None or plans.is_settled or plans.budget_bytes is None:
            return run(), False
        try:
            peaks = memory_counts.Peaks(memory_counts.devices())
        except TfgcError:  # TensorFlow does not count here
            plans.is_settled = True
            return run(), False
        try:
            results = run()
        finally:
            found = peaks.close()
        device = max(found, key=lambda each: found[each] - peaks.held[each])
        changes = plans.saw(found[device] - peaks.held[device], plans.held_bytes)
        if changes and self.latest is not None:
            self._again.add(self.latest)
        return results, changes

    @property
    def is_in_use(self) -> bool:
        """Whether the latest step ran by a plan of all that it does."""
        return self.latest is not None

    def to_explain(self) -> out_of_memory.StepByPlan | None:
        """The latest step as its plan sees it, to say why it ran out of memory."""
        plans = None if self.latest is None else self._plans.get(self.latest)
        return plans and out_of_memory.step_as_a_whole(self._model, self._model.optimizer, plans)

    def _signature(self, batch: Any) -> Signature:
        self._training.look()
        inputs = [t for t in tf.nest.flatten(keras.utils.unpack_x_y_sample_weight(batch)[0]) if tf.is_tensor(t)]
        policy = self._model.dtype_policy.name
        return Signature(batch_specs.sizes_of(inputs), "graph", policy, in_step=True, training=self._training.now)


class _Plainly:
    """A step to be traced, in which enabled models run their own code."""

    def __init__(self, step: Callable) -> None:
        self._function = tf.function(step, autograph=False)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        with isolated_traces.plainly():
            return self._function.get_concrete_function(*args, **kwargs)


def _planned(plans: TracePlans, seconds: float, shapes: Any) -> PlannedStep:
    made = plans.plan
    return PlannedStep(
        plans.described(), "graph", plans.rows, plans.needed_bytes, plans.plain_bytes, made.overhead, seconds,
        made.unchanged if plans.budget_bytes is None and made.unchanged else None, shapes=shapes,
    )  # fmt: skip


def _spec(value: Any) -> Any:
    """What stands for an argument in the trace."""
    if isinstance(value, tf.Tensor):
        return tf.TensorSpec(value.shape, value.dtype)
    is_composite = isinstance(value, tf.RaggedTensor | tf.SparseTensor | tf.IndexedSlices)
    return tf.type_spec_from_value(value) if is_composite else value
