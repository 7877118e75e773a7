"""A training step of any kind, traced once and rewritten, in place of `tf.function`: what `tfgc.function` will be.

Not public yet: budgets, status and strategies with options are missing, and `scripts/rewritten.py` alone uses it.
TensorFlow's own cache decides when to trace again: the function that runs is a `tf.function` whose body, when it is
traced, traces the user's function apart, plans it, and builds the rewritten step.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfgc._planning.step_plans import Rewritten, StepPlans
from tfgc._run.emit import Built
from tfgc._step.trace import trace
from tfgc._units import format_bytes, format_percent

# What of the options of `tf.function` belongs to the function that is traced; the rest to the one that runs.
_OF_TRACE = ("autograph", "experimental_autograph_options")


class TracedFunction:
    """What takes the place of a Python function. Called, bound and inspected like a `tf.function`.

    Args:
        function: The step.
        strategy: The name of a strategy; None: all plans of the front.
        verbose: Whether to print a line for each trace.
        **options: As of `tf.function`.
    """

    def __init__(
        self, function: Callable[..., Any], strategy: str | None = None, verbose: bool = True, **options: Any
    ) -> None:
        functools.update_wrapper(self, function)
        self._python, self._strategy, self._verbose, self._options = function, strategy, verbose, options
        self._traced = tf.function(function, **{k: v for k, v in options.items() if k in _OF_TRACE})
        outer = {k: v for k, v in options.items() if k not in _OF_TRACE}

        @functools.wraps(function)
        def build(*args: Any, **kwargs: Any) -> Any:
            return self._build(*args, **kwargs)

        self._runs = tf.function(build, autograph=False, **outer)
        self._bound: weakref.WeakKeyDictionary[Any, TracedFunction] = weakref.WeakKeyDictionary()
        self._call = threading.local()  # the rows of the batch of the call that runs now
        self.plans: list[Rewritten] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._call.rows = _rows((args, kwargs))
        return self._runs(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> "TracedFunction":
        if instance is None:
            return self
        if instance not in self._bound:
            method = self._python.__get__(instance, owner)
            self._bound[instance] = TracedFunction(method, self._strategy, self._verbose, **self._options)
        return self._bound[instance]

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """As that of `tf.function`."""
        return self._runs.get_concrete_function(*args, **kwargs)

    def _build(self, *args: Any, **kwargs: Any) -> Any:
        """The rewritten step in the graph of the function that runs, for what TensorFlow traces that with."""
        specs, named = tf.nest.map_structure(_spec, (args, kwargs))
        found = trace(self._traced, *specs, rows=getattr(self._call, "rows", None), **named)
        plans = StepPlans(found.step)
        plan = plans.least() if self._strategy is None else plans.by(self._strategy)
        self.plans.append(plan)
        if self._verbose:
            print(_line(getattr(self._python, "__name__", "step"), plan), file=sys.stderr, flush=True)
        given = [t for t in tf.nest.flatten((args, kwargs), expand_composites=True) if isinstance(t, tf.Tensor)]
        made = iter(Built(found, plan.step, bool(self._options.get("jit_compile")))(given))
        structure = found.function.structured_outputs
        return tf.nest.map_structure(lambda t: next(made) if _is_tensor(t) else t, structure, expand_composites=True)


def _spec(value: Any) -> Any:
    """What stands for an argument in the trace: specs of tensors, other values as they are."""
    if isinstance(value, tf.Tensor):
        return tf.TensorSpec(value.shape, value.dtype)
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor | tf.IndexedSlices):
        return tf.type_spec_from_value(value)
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor | tf.TensorSpec)


def _rows(arguments: Any) -> int | None:
    """The samples of the first argument that has any."""
    for value in tf.nest.flatten(arguments):
        shape = getattr(value, "shape", None)
        if shape is not None and len(shape) and shape[0] is not None:
            return int(shape[0])
    return None


def _line(name: str, plan: Rewritten) -> str:
    if plan.unchanged:
        return f"tfgc: {name!r} runs as it is: {plan.unchanged}"
    needs, plain = format_bytes(plan.peak_bytes), format_bytes(plan.plain_bytes)
    more = format_percent(plan.overhead, ".0f")
    return f"tfgc: {name!r} needs {needs} of {plain} (simulated, without weights), {more} more work"
