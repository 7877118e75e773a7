"""Run the body of a `tf.function` in place when it is called inside a pure run.

A `tf.function` keeps its traces. One traced in a pure run would keep what it saw there: variables served from
a table, writes that were only recorded. So its body runs in place. Where it needs a separate graph, because it asks for
XLA (as Keras does for grouped convolutions, which TensorFlow cannot run on CPUs otherwise) or because TensorFlow made
it (`tf.vectorized_map`), that graph belongs to a function made for this one call.

Only the thread that runs purely is affected: calls in other threads go to TensorFlow as they are.

Known weaknesses. In eager calls op by op a function for XLA is traced and compiled at every call. AutoGraph does not
convert a body that runs in place: one that branches on tensors in Python cannot be recomputed.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import concrete_functions, custom_gradient_calls

_TF_FUNCTION: Any = type(tf.function(lambda: None))
_call_in_tensorflow = _TF_FUNCTION.__call__
_lock = threading.Lock()
_running = 0
_here = threading.local()


@contextlib.contextmanager
def inlined(apart: Callable | None = None) -> Iterator[None]:
    """Run the body of each `tf.function` that this thread calls in place.

    Args:
        apart: Called as `apart(body, args, kwargs, xla)` for one that needs a separate graph. None inlines it, too.
    """
    outer = getattr(_here, "handler", None)
    _here.handler = lambda function, args, kwargs: _run(function, apart, args, kwargs)
    _count(1)
    try:
        with custom_gradient_calls.noted():
            yield
    finally:
        _count(-1)
        _here.handler = outer


def call_apart(body: Callable, tensors: Sequence[tf.Tensor], xla: bool) -> Any:
    """Call a function of tensors in a `tf.function` that is forgotten afterwards."""
    return _call_in_tensorflow(tf.function(body, jit_compile=xla or None, autograph=False), *tensors)


def _run(function: Any, apart: Callable | None, args: tuple, kwargs: dict) -> Any:
    body = function.python_function
    of_tensorflow = str(getattr(body, "__module__", None)).startswith("tensorflow.")
    xla = concrete_functions.wants_xla(function) and not tf.config.functions_run_eagerly()
    if apart is None or not (xla or of_tensorflow):
        return body(*args, **kwargs)
    return apart(body, args, kwargs, xla)


def _count(change: int) -> None:
    """Replace `tf.function`'s `__call__` as long as any thread runs purely."""
    global _running
    with _lock:
        _running += change
        _TF_FUNCTION.__call__ = _call if _running else _call_in_tensorflow


def _call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    handler = getattr(_here, "handler", None)
    if handler is None:
        return _call_in_tensorflow(function, *args, **kwargs)
    return handler(function, args, kwargs)
