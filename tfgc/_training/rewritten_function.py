"""What `tfgc.function` returns: called, bound and inspected as a `tf.function` is.

What runs is a `tf.function` whose body traces the user's function apart, plans it, and builds the rewritten step.
"""

import dataclasses
import functools
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._core.plan import Plan
from tfgc._framework import private_api, whole_steps
from tfgc._framework.concrete_functions import concrete
from tfgc._planning import compiled_plans
from tfgc._planning.function_peaks import measured
from tfgc._planning.function_trace import results, shapes_of, traced
from tfgc._planning.request import Request
from tfgc._planning.trace_plans import TracePlans
from tfgc._step.trace import Trace
from tfgc._training.function_status import FunctionStatus, line, trace_status

_UNDER_TAPE = "a tape around the call records it; put the tape into the function"
_IN_STRATEGY = "in the scope of a tf.distribute.Strategy no step is rewritten"


class Settings(NamedTuple):
    """Options of `tf.function` for the user's code and for what runs, and tfgc's."""

    traced: dict[str, Any]
    runs: dict[str, Any]
    request: Request
    verbose: bool


class RewrittenFunction:
    """A function that runs as a rewritten step.

    Args:
        function: The user's.
        settings: How it is traced and run.
        method: The `tf.function` of a method that is bound.
    """

    def __init__(self, function: Callable[..., Any], settings: Settings, method: Any = None) -> None:
        functools.update_wrapper(self, tf.autograph.experimental.do_not_convert(function))  # AutoGraph leaves it
        functools.update_wrapper(self, function, updated=())
        del vars(self)["__wrapped__"]  # TensorFlow would take what it wraps in its place
        self.__signature__ = inspect.signature(function)
        if method is not None:
            self.__signature__ = self.__signature__.replace(parameters=[*self.__signature__.parameters.values()][1:])
        self._name = getattr(function, "__name__", type(function).__name__)
        self._function, self._settings, self._request = function, settings, settings.request
        self._traced = tf.function(function, **settings.traced) if method is None else method
        self._bound = weakref.WeakKeyDictionary[Any, RewrittenFunction]()
        self._traces, self.plans = dict[int, Trace](), dict[int, TracePlans]()  # by the id of TensorFlow's function
        self._graphs = weakref.WeakKeyDictionary[Any, TracePlans]()
        self._xla = bool(settings.runs.get("jit_compile"))
        self._is_built, self._is_measured, self._note, self._said = False, not self._xla, "", set[str]()
        self._call = threading.local()  # the arguments of the call that runs now
        self._runs = self._emitted()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (plain := self._plain()) is not None:
            return plain(*args, **kwargs)
        self._call.arguments = args, kwargs
        try:
            if (plans := self._watched(args, kwargs)) is None:
                return self._runs(*args, **kwargs)
            count, (returned, made_bytes) = len(self.plans), measured(self._runs, args, kwargs)
        finally:
            self._call.arguments = None
        self._is_measured = made_bytes is not None
        if made_bytes is not None and len(self.plans) == count and plans.saw(made_bytes):
            self._say(plans.watch.change)
            self._runs = self._emitted()
        return returned

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        method = self._traced.__get__(instance, owner)
        if isinstance(method, types.MethodType):  # TensorFlow passes composite tensors as arguments
            return types.MethodType(self, instance)
        if instance not in self._bound:
            self._bound[instance] = RewrittenFunction(self._function, self._settings, method)
        return self._bound[instance]

    def __reduce__(self) -> Any:
        return type(self), (self._function, self._settings)

    def __repr__(self) -> str:
        return f"<tfgc.function {self._name!r}>"

    @property
    def python_function(self) -> Callable[..., Any]:
        """As that of `tf.function`."""
        return self._traced.python_function

    @property
    def input_signature(self) -> Any:
        """As that of `tf.function`."""
        return self._runs.input_signature

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """As that of `tf.function`."""
        return (self._runs if self._plain() is None else self._traced).get_concrete_function(*args, **kwargs)

    def pretty_printed_concrete_signatures(self, verbose: bool = True) -> str:
        """As that of `tf.function`."""
        return self._runs.pretty_printed_concrete_signatures(verbose)

    def experimental_get_tracing_count(self) -> int:
        """As that of `tf.function`: how often the Python code was traced."""
        return self._traced.experimental_get_tracing_count()

    def use(self, plan: Plan) -> None:
        """Run by a plan of the step that ran last from now on, and steps like it."""
        self._request = dataclasses.replace(self._request, less=plan)
        [*self.plans.values()][-1].use(plan)
        self._runs = self._emitted()

    def status(self) -> FunctionStatus:
        """What the function needs, and of how much, for each signature; print it."""
        return FunctionStatus(self._name, tuple(map(trace_status, self.plans.values())), self._note)

    def _plain(self) -> Callable[..., Any] | None:
        """What runs in place of the rewritten step, where the call comes from a place that takes none."""
        if self._is_built and whole_steps.is_here():  # it calls itself
            return self._traced
        if tf.config.functions_run_eagerly():
            return self.python_function
        if tf.distribute.has_strategy():
            self._note = self._note or self._say(f"runs as it is: {_IN_STRATEGY}")
            if tf.distribute.in_cross_replica_context():
                return self._traced
            # What replicas do together cannot be done from inside of a tf.function.
            converts = self._settings.traced.get("autograph", True) and not tf.executing_eagerly()
            return tf.autograph.to_graph(self.python_function) if converts else self.python_function
        if not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function:
            return self._traced
        if not private_api.could_record():
            return None
        self._note = self._note or self._say(f"runs as it is: {_UNDER_TAPE}")
        return self._traced

    def _say(self, words: str) -> str:
        is_known = words in self._said and words.startswith("runs as it is")
        self._said.add(words)
        if self._settings.verbose and not is_known:
            print(f"tfgc: {self._name!r} {words}", file=sys.stderr, flush=True)
        return words

    def _emitted(self) -> Any:
        def build(*args: Any, **kwargs: Any) -> Any:
            return self._build(*args, **kwargs)

        build.__name__, build.__signature__ = self._name, self.__signature__
        return tf.function(build, autograph=False, **self._settings.runs)

    def _build(self, *args: Any, **kwargs: Any) -> Any:
        """The rewritten step in the graph of the function that runs, for what TensorFlow traces that with."""
        graph: Any = tf.compat.v1.get_default_graph()
        given = [graph.capture(t) for t in graph.inputs]
        shapes = shapes_of(getattr(self._call, "arguments", None), self.__signature__)
        self._is_built, xla = True, self._xla or private_api.in_xla()
        try:
            found = traced(self._traced, args, kwargs, shapes)
        finally:
            self._is_built = False
        found = self._traces.setdefault(key := id(found.function), found)  # gradient calls were noted when it was made
        if (plans := self.plans.get(key)) is None:
            says, name, measures = self._settings.verbose, self._name, self._is_measured and not xla
            by_xla = compiled_plans.plans_for(found, shapes, self._request, name, says) if xla else None
            plans = self.plans[key] = TracePlans(found, self._request, shapes, measures, step_plans=by_xla)
            self._say(line(plans))
        self._graphs[graph] = plans
        for variable in found.function.variables:  # so that tapes around the call watch them
            variable.read_value()
        return results(found, plans.plan, given, xla=xla)

    def _watched(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TracePlans | None:
        """The plans for these arguments, if their steps are to be measured."""
        all_plans = list(self.plans.values())
        shapes = shapes_of((args, kwargs), self.__signature__) if any(each.is_open for each in all_plans) else []
        is_settled = all_plans and not any(each.is_watched or each.is_too_small(shapes) for each in all_plans)
        if is_settled or not (self._is_measured and tf.executing_eagerly()):
            return None
        is_only = len(all_plans) == 1 and not all_plans[0].is_open  # unless this call is traced: then there are more
        plans = all_plans[0] if is_only else self._graphs.get(concrete(self._runs, args, kwargs).graph)
        if plans is not None and plans.is_too_small(shapes):
            plans = self.plans[id(plans.trace.function)] = plans.larger(shapes)
            self._runs = self._emitted()
        return plans if plans is not None and plans.is_watched else None
