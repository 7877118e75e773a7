"""Run the body of a `tf.function` in place when it is called inside a pure run.

A `tf.function` keeps its traces. One traced in a pure run would keep what it saw there: variables served from a table,
writes that were only recorded. Where its body needs a separate graph, since it asks for XLA (as Keras does for grouped
convolutions, which TensorFlow cannot run on CPUs otherwise) or since TensorFlow made it (`tf.vectorized_map`), that
graph belongs to a function made for this one call.

Known weaknesses. In eager calls op by op a function for XLA is traced and compiled at every call. AutoGraph does not
convert a body that runs in place: one that branches on tensors in Python cannot be recomputed.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import concrete_functions, diverted_calls

_TF_FUNCTION: Any = type(tf.function(lambda: None))
_calls = diverted_calls.DivertedCalls(_TF_FUNCTION, "__call__")


@contextlib.contextmanager
def inlined(apart: Callable | None = None) -> Iterator[None]:
    """Run the body of each `tf.function` that this thread calls in place.

    One that needs a separate graph is run by `apart(body, args, kwargs, xla)`, or in place if that is None.
    """

    def run(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _run(function, apart, args, kwargs)

    with _calls.to(run), diverted_calls.custom_gradients_noted():
        yield


def call_apart(body: Callable, tensors: Sequence[tf.Tensor], xla: bool) -> Any:
    """Call a function of tensors in a `tf.function` that is forgotten afterwards."""
    return _calls.original(tf.function(body, jit_compile=xla or None, autograph=False), *tensors)


def _run(function: Any, apart: Callable | None, args: tuple, kwargs: dict) -> Any:
    body = function.python_function
    of_tensorflow = str(getattr(body, "__module__", None)).startswith("tensorflow.")
    xla = concrete_functions.wants_xla(function) and not tf.config.functions_run_eagerly()
    if apart is None or not (xla or of_tensorflow):
        return body(*args, **kwargs)
    return apart(body, args, kwargs, xla)
