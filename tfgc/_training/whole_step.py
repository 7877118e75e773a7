"""The `train_step` of an enabled model in a graph: traced once, rewritten, and built where Keras asks for it.

In a budget the peaks of real steps are read, and where another plan is better by them, what was traced is built again.
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.plan import Plan
from tfgc._core.recently_used import RecentlyUsed
from tfgc._errors import InfeasibleBudgetError, UnsupportedModelError
from tfgc._framework import fit_loop, keras_models, private_api
from tfgc._planning import batch_specs, compiled_plans, function_peaks, function_trace, promised, step_traces
from tfgc._planning.batch_specs import Signature
from tfgc._planning.promised import PlannedStep
from tfgc._planning.request import Request
from tfgc._planning.trace_plans import TracePlans
from tfgc._planning.watch import STEPS
from tfgc._tracing import example_sizes
from tfgc._training import out_of_memory, plan_report
from tfgc._training.training_state import TrainingState

# Plans that a model keeps, of those that were used last.
_MOST_PLANS = 8
# What the status says of a model that such a step calls.
PART = "trains in a step that is planned as a whole"


class WholeStep:
    """Runs a model's `train_step` by a plan of all that it does."""

    def __init__(self, model: keras.Model, request: Request, training: TrainingState, verbose: bool | None) -> None:
        self._model, self.request, self._training, self._verbose = model, request, training, verbose
        self._plans: RecentlyUsed[Signature, TracePlans] = RecentlyUsed(_MOST_PLANS)
        self._again: set[Signature] = set()  # to be built again from what was traced
        self.made: RecentlyUsed[Signature, PlannedStep] = RecentlyUsed(_MOST_PLANS)
        self._was_built = False
        self.around: Callable[[Callable], Callable] = lambda step: step  # what makes a step one to be taken back
        self.lighten: Callable[[], bool] = lambda: False  # makes it one that needs less, if there is one
        self.latest: Signature | None = None  # None where the latest step ran otherwise
        if request.options:
            self.request = dataclasses.replace(request, strategy=request.chosen)

    @property
    def given(self) -> Plan | None:
        """The plan of its operations that it is to run by."""
        return self.request.plan

    def applies(self, batch: Any) -> bool:
        """Whether the step that is asked for here is one to trace apart, and its sizes are known."""
        self.latest = None
        if tf.executing_eagerly() or tf.distribute.has_strategy():
            return False
        if any(tensor.shape.rank is None for tensor in batch_specs.tensors(batch)):
            return False
        shapes = batch_specs.shapes_in(batch, fit_loop.batch_size)
        return bool(shapes) and all(None not in shape for shape in shapes)

    def run(self, step: Callable, batch: Any) -> Any:
        """What the step gives for a batch, in the graph at hand."""
        return self._run(step, batch, private_api.converts())  # asked where AutoGraph may still be at work

    @tf.autograph.experimental.do_not_convert
    def _run(self, step: Callable, batch: Any, converts: bool) -> Any:
        start, shapes = time.perf_counter(), batch_specs.shapes_in(batch, fit_loop.batch_size)
        xla = private_api.in_xla()
        given = [t for t in tf.nest.flatten(batch, expand_composites=True) if isinstance(t, tf.Tensor)]
        sizes = [
            tf.TensorShape([shapes[0][0] if i == 0 and n is None else n for i, n in enumerate(t.shape)]) for t in given
        ]
        if not self._was_built:
            self._build(batch, shapes[0][0])
        signature = self._signature(batch)
        plans = known = self._plans.get(signature) if signature in self._again else None
        if plans is None or not _takes(plans, given):
            try:
                function = tf.function(self.around(step), autograph=converts, jit_compile=xla or None)
                found = function_trace.traced(function, (batch,), {}, sizes)
            except ValueError:
                self._check_inputs(batch)
                raise

            def planned_by(request: Request) -> TracePlans:
                name, says = self._model.name, bool(self._verbose)
                by_xla = compiled_plans.plans_for(found, sizes, request, name, says) if xla else None
                return TracePlans(found, request, sizes, not xla, step_plans=by_xla)

            request = self.request.after(each.watch.ratio for each in self._plans.copy().values())
            plans = promised.in_share(planned_by, request, self.made.copy().values(), shapes)
            signature = self._signature(batch)  # a model without weights is built by then
            self._plans[signature] = plans
        self._again.discard(signature)
        planned, before = promised.planned_step(plans, time.perf_counter() - start, shapes), self.made.get(signature)
        planned = dataclasses.replace(planned, mode=signature.mode)
        self.latest, self.made[signature] = signature, planned
        if not plans.watch.change and (known is None or before is None or before.plan != planned.plan):
            if plans.note:
                self._say(plans.note)
            plan_report.report(self._model.name, planned, verbose=self._verbose)
        return function_trace.results(plans.trace, plans.plan, given, xla=xla)

    def build_again(self) -> None:
        """Build the latest step from what was traced of it, when it is asked for next."""
        if self.latest is not None:
            self._again.add(self.latest)

    def use(self, plan: Plan) -> None:
        """Run the latest step, and steps like it, by another plan, once it is built again."""
        self.request = dataclasses.replace(self.request, less=plan)
        if (plans := self.latest and self._plans.get(self.latest)) is not None:
            plans.use(plan)
        self.build_again()

    def watched(self, run: Callable[[], Any], build: Callable[[], Any]) -> Any:
        """What a step gives; where its peak shows that another plan is better, it is built anew."""
        plans = None if self.latest is None else self._plans.get(self.latest)
        if not (plans is None or plans.is_watched):
            return run()
        results, made_bytes = function_peaks.measured(run, (), {}, plans is None)
        plans = None if self.latest is None else self._plans.get(self.latest)
        if made_bytes is not None and plans is not None and plans.is_watched:
            try:
                is_changed = plans.saw(made_bytes)
            except InfeasibleBudgetError:
                if self.lighten():
                    return results
                raise
            if is_changed:
                self._say(plans.watch.change)
                self.build_again()
                build()
            else:
                self._note(plans)
        return results

    def _note(self, plans: TracePlans) -> None:
        """Note what the latest step was measured to need."""
        assert self.latest is not None
        made, is_new = self.made.get(self.latest), plans.watch.steps == STEPS
        if made is not None and (is_new or made.measured_bytes != plans.watch.needed_bytes):
            self.made[self.latest] = now = made.measured(plans.watch)
            if is_new and not plan_report.shows(now):
                self._say(plan_report.measured(now))

    def _say(self, words: str) -> None:
        if self._verbose:
            print(f"tfgc: {self._model.name!r}: {words}", file=sys.stderr, flush=True)

    def to_explain(self) -> out_of_memory.StepByPlan | None:
        """The latest step as its plan sees it, to say why it ran out of memory."""
        plans = None if self.latest is None else self._plans.get(self.latest)
        return plans and out_of_memory.step_as_a_whole(self._model, self._model.optimizer, plans)

    def _check_inputs(self, batch: Any) -> None:
        """Raise `OptionError` where a functional model does not take the batch, and say what it takes."""
        if keras_models.has_graph(self._model) and not keras_models.has_own_step(self._model):
            example_sizes.shapes(self._model, keras.utils.unpack_x_y_sample_weight(batch)[0])

    def _build(self, batch: Any, rows: int) -> None:
        """Build layers that Keras could not, such as those that make variables of tensors."""
        self._was_built = True
        if not keras_models.is_built(self._model):
            specs = batch_specs.specs(batch, rows)
            with contextlib.suppress(UnsupportedModelError):
                plan_report.planned(self._model, lambda: step_traces.build(self._model, specs), verbose=self._verbose)

    def _signature(self, batch: Any) -> Signature:
        self._training.look()
        inputs = [t for t in tf.nest.flatten(keras.utils.unpack_x_y_sample_weight(batch)[0]) if tf.is_tensor(t)]
        policy = self._model.dtype_policy.name
        mode = plan_report.mode_of_call()
        return Signature(batch_specs.sizes_of(inputs), mode, policy, in_step=True, training=self._training.now)


def _takes(plans: TracePlans, given: Sequence[tf.Tensor]) -> bool:
    """Whether tensors have the shapes, open sizes included, with which a step was traced."""
    taken = plans.trace.function.graph.inputs
    return all(t.shape.as_list() == other.shape.as_list() for t, other in zip(given, taken))
