"""`fit` and `train_on_batch` of an enabled model when a step runs out of memory.

Keras asks `make_train_function` for what it calls for each batch; an enabled model answers with a function around that.
To run a batch again it has to be at hand: with `on_oom="replan"` Keras's function gets an iterator over it alone.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._framework import fit_loop, keras_models
from tfgc._framework.diverted_calls import replaced
from tfgc._framework.layer_values import leaves
from tfgc._training import declared_sizes, out_of_memory, peak_memory, stale_traces
from tfgc._training.atomic_step import AtomicStep
from tfgc._training.planned_calls import PlannedCalls
from tfgc._training.stand_ins import mode_of_fit, stand_in
from tfgc._training.whole_step import WholeStep


def install(model: keras.Model, on_oom: str | None, *, by_plan: bool) -> None:
    """Guard the training function of a model that has just been enabled, by a plan or by `layers=`."""
    remove(model)
    model.__dict__["make_train_function"] = _GuardedFit(model, on_oom, by_plan).make


def remove(model: keras.Model) -> None:
    """Let Keras train a model, and models inside of it, as it does without tfgc."""
    peak_memory.forget(model)
    parts: list[Any] = keras_models.layers_inside(model)
    for part in parts:
        made = part.__dict__.pop("make_train_function", None)
        if made is not None and vars(part).get("train_function") is not None:
            part.make_train_function(force=True)


class _GuardedFit(out_of_memory.GuardedStep):
    """Makes the training function of a model."""

    def __init__(self, model: keras.Model, on_oom: str | None, by_plan: bool) -> None:
        super().__init__(f"a training step of {model.name!r}", None)
        self._model, self._on_oom, self._by_plan = model, on_oom, by_plan
        self._step: Callable = model.train_step
        self._is_prepared, self._declared = False, None
        self._function: Callable = model.make_train_function
        self._samples: int | None = None  # in the largest batch so far, where a budget is held

    @property
    def mode(self) -> str:
        return mode_of_fit(self._model)

    def make(self, force: bool = False) -> None:
        """What Keras calls before it trains."""
        model: Any = self._model
        if not self._has_larger_batches() and model.train_function == self._run and not force:
            return
        self._let_updates_run()
        if self._on_oom == "replan" or self._replans_by_default:
            self._make_atomic()
        self._build()

    @property
    def _replans_by_default(self) -> bool:
        """Whether a step in a budget runs again though nobody asks for it: where it can, and keeps no copy for that."""
        if self._on_oom is not None or not getattr(stand_in(self._model), "has_budget", False):
            return False
        return self.mode != "xla" and self._obstacle() is None and fit_loop.batch_size() is not None

    def _build(self) -> None:
        model: Any = self._model
        with contextlib.nullcontext() if self.atomic is None else replaced(model, "train_step", self._step):
            type(model).make_train_function(model, force=True)
        self._function = model.train_function
        model.train_function = self._run

    @property
    def _whole(self) -> WholeStep | None:
        return getattr(stand_in(self._model), "whole", None)

    def _has_larger_batches(self) -> bool:
        """Whether this `fit` has larger batches than all before: a trace with an open batch keeps its plan."""
        own, before = stand_in(self._model), self._samples
        if self._whole is None or not own.has_budget:
            return False
        with self._model.distribute_strategy.scope():
            samples = fit_loop.batch_size()
        self._samples = max(filter(None, (before, samples)), default=None)
        return before is not None and self._samples != before

    def _make_atomic(self) -> None:
        model: Any = self._model
        obstacle = self._obstacle()
        if obstacle is not None:
            raise OptionError(f"on_oom='replan' {obstacle}leave on_oom out of tfgc.enable")
        # In a graph the updates of other optimizers are held like all that the step writes.
        holders = [model] if self.mode == "graph" else keras_models.layers_inside(model)
        held = (one for layer in holders for one in leaves(vars(layer)))
        optimizers = {id(one): one for one in held if isinstance(one, keras.Optimizer)}
        self.atomic = AtomicStep(model, list(optimizers.values()), self.mode, must=self._on_oom == "replan")
        step, around, whole = model.train_step, self.atomic.around, self._whole
        if whole is not None:
            whole.around, whole.lighten = around, self._lighten  # where the step is traced

        def run(data: Any) -> Any:
            if whole is not None and self._is_prepared:
                whole.build_again()  # for a last batch of other size, which Keras's function is traced for, too
            return (step if whole is not None and whole.applies((data,)) else around(step))(data)

        self._step, self._is_prepared = declared_sizes.opened(run, lambda: self._declared), False

    def _run(self, iterator: Any) -> Any:
        if self.atomic is None:
            return self._watched(iterator)
        self._declared = iterator.element_spec if isinstance(iterator, tf.data.Iterator) else None
        absent = tf.experimental.Optional  # in place of an input that is None
        return self._watched(tf.nest.map_structure(lambda x: None if isinstance(x, absent) else x, next(iterator)))

    def _watched(self, data: Any) -> Any:
        whole, run = self._whole, functools.partial(self.guarded, data)
        return run() if whole is None else whole.watched(run, self._build)

    def attempt(self, data: Any) -> Any:
        """Run the step on an iterator, or on a batch that may have to run again."""
        if self.atomic is None:
            return self._function(data)
        if not self._is_prepared:
            try:
                self._prepare(data)
            except InfeasibleBudgetError:
                if self._lighten():
                    return self._function(iter([data]))
                raise
            self.atomic.begin()
            self._is_prepared = True
        return self._function(iter([data]))

    def _lighten(self) -> bool:
        """Update weights as gradients come from now on, where nobody asked to wait; whether that is another way."""
        if self._on_oom == "replan" or self.atomic is None:
            return False
        self._on_oom = "raise"
        self._let_updates_run()
        self._build()
        return True

    def _let_updates_run(self) -> None:
        """Let a step update weights as gradients come, so that it cannot be taken back."""
        self.atomic = None
        if self._whole is not None:
            self._whole.around = lambda step: step

    def _prepare(self, data: Any) -> None:
        """Make the variables of the model, of its optimizer and of metrics, so that the step finds them."""
        if self.mode != "compiled":
            # As the step itself is compiled: what plans at its first call plans here.
            step: Any = tf.function(self._step, autograph=False, jit_compile=self.mode == "xla")
            step.get_concrete_function(data)
            if self._whole is not None:
                self._whole.build_again()
        elif not self._model.built:
            x = keras.utils.unpack_x_y_sample_weight(data)[0]
            # One whose code asks for values is built by its first step, which then cannot be taken back.
            with contextlib.suppress(Exception):
                self._model(keras.tree.map_structure(lambda t: keras.KerasTensor(t.shape, t.dtype), x))

    def planned(self, data: Any) -> out_of_memory.StepByPlan | None:
        own = stand_in(self._model)
        # Where layers are recomputed one by one, there is no plan to explain.
        return own.to_explain() if isinstance(own, PlannedCalls) else None

    def can_be_taken_back(self) -> bool:
        return self._by_plan and self._obstacle() is None

    def _obstacle(self) -> str | None:
        """Why a step cannot run again."""
        model: Any = self._model
        if model.steps_per_execution != 1:
            return (
                f"runs one step again, and compile(steps_per_execution={model.steps_per_execution}) runs several at "
                "once: set that to 1, or "
            )
        if tf.distribute.has_strategy() or model.distribute_strategy is not tf.distribute.get_strategy():
            return "runs a step again, and one of several replicas cannot be taken back: "
        return None

    def replace(self, plan: Plan, needed_bytes: int) -> None:
        """Let the model run by another plan; one for a functional model's own step, in all its calls."""
        own = stand_in(self._model)
        if self._whole is not None and self._whole.latest is not None:
            self._whole.use(plan)
            return self._build()
        if isinstance(own, PlannedCalls):
            own.use(plan)
        stale_traces.renew(self._model, "on_oom='replan'", [self._model])
