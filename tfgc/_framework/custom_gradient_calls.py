"""Calls of functions with a `tf.custom_gradient` in a pure run, where Keras variables are tensors.

TensorFlow gives such a function the gradients of the variables that it reads, and of its arguments, but of no tensor
that it closes over. So a weight that it reads in a pure run would have none: `read_inside` says that one is read there.
`tf.recompute_grad` and `keras.remat` are custom gradients as well; what they wrap is recomputed anyway, and runs in
place. Only the thread that runs purely is affected.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tfgc._framework import versions
from tfgc._framework.diverted_calls import DivertedCalls
from tfgc._framework.internals import custom_gradient

# What runs such a function, as its module calls it.
_RUNS = [
    DivertedCalls(custom_gradient, name, versions.attribute(custom_gradient, name))
    for name in ("_eager_mode_decorator", "_graph_mode_decorator")
]
_here = threading.local()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Note calls of this thread in here."""
    with contextlib.ExitStack() as stack:
        for run in _RUNS:
            stack.enter_context(run.to(functools.partial(_run_noted, run.original)))
        yield


def read_inside() -> bool:
    """Whether this thread is in such a function, of those that are noted."""
    return getattr(_here, "depth", 0) > 0


def _run_noted(run: Callable, function: Callable, args: tuple, kwargs: dict) -> Any:
    if function.__qualname__ == "recompute_grad.<locals>.inner" and function.__module__ == custom_gradient.__name__:
        return _wrapped(function)(*args, **kwargs)

    @functools.wraps(function)  # Variables among the arguments are read outside, and have their gradients.
    def body(*args: Any, **kwargs: Any) -> Any:
        _here.depth = getattr(_here, "depth", 0) + 1
        try:
            return function(*args, **kwargs)
        finally:
            _here.depth -= 1

    return run(body, args, kwargs)


def _wrapped(function: Any) -> Callable:
    """The function that `tf.recompute_grad` wraps."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__))
    return cells["f"].cell_contents
