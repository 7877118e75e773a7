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
from tfgc._framework.versions import attribute

try:
    from tensorflow.python.ops import custom_gradient
except ImportError as error:
    raise versions.unsupported(error) from error

# What runs such a function, as its module calls it.
_RUN = {name: attribute(custom_gradient, name) for name in ("_eager_mode_decorator", "_graph_mode_decorator")}
_lock = threading.Lock()
_noting = 0
_here = threading.local()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Note calls of this thread in here."""
    outer = getattr(_here, "depth", None)
    _here.depth = 0 if outer is None else outer
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _here.depth = outer


def read_inside() -> bool:
    """Whether this thread is in such a function, of those that are noted."""
    return bool(getattr(_here, "depth", None))


def _count(change: int) -> None:
    """Replace what runs these functions as long as any thread notes them."""
    global _noting
    with _lock:
        _noting += change
        for name, run in _RUN.items():
            setattr(custom_gradient, name, _NOTED[name] if _noting else run)


def _noted(run: Callable) -> Callable:
    def noted_run(function: Callable, args: tuple, kwargs: dict) -> Any:
        if getattr(_here, "depth", None) is None:
            return run(function, args, kwargs)
        if function.__qualname__ == "recompute_grad.<locals>.inner" and function.__module__ == custom_gradient.__name__:
            return _wrapped(function)(*args, **kwargs)

        @functools.wraps(function)  # Variables among the arguments are read outside, and have their gradients.
        def body(*args: Any, **kwargs: Any) -> Any:
            _here.depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                _here.depth -= 1

        return run(body, args, kwargs)

    return noted_run


def _wrapped(function: Any) -> Callable:
    """The function that `tf.recompute_grad` wraps."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__))
    return cells["f"].cell_contents


_NOTED = {name: _noted(run) for name, run in _RUN.items()}
