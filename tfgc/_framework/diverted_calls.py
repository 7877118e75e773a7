"""Calls of functions of TensorFlow and Keras that a thread diverts for a while; other threads' go where they did."""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework.internals import custom_gradient, gradients_util
from tfgc._framework.versions import attribute


class DivertedCalls:
    """The calls of `owner.name`, a method or a function of a module; `original` is what runs them otherwise."""

    def __init__(self, owner: Any, name: str) -> None:
        self.original = attribute(owner, name)
        self._owner = owner
        self._name = name
        # The attribute is replaced as long as any thread diverts calls.
        self._lock = threading.Lock()
        self._diverting = 0
        self._here = threading.local()

        def call(*args: Any, **kwargs: Any) -> Any:
            handler = getattr(self._here, "handler", None) or self.original
            return handler(*args, **kwargs)

        self._call = call

    @property
    def are_diverted(self) -> bool:
        """Whether this thread diverts them."""
        return getattr(self._here, "handler", None) is not None

    @contextlib.contextmanager
    def to(self, handler: Callable) -> Iterator[None]:
        """Hand this thread's calls in here to `handler`, with the same arguments."""
        outer = getattr(self._here, "handler", None)
        self._here.handler = handler
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)
            self._here.handler = outer

    def _count(self, change: int) -> None:
        with self._lock:
            found = attribute(self._owner, self._name)
            # Others may have wrapped it since. An interrupt, or a wrapper taken off late, may have left ours there.
            if not self._diverting and found is not self._call:
                self.original = found
            self._diverting += change
            setattr(self._owner, self._name, self._call if self._diverting else self.original)


# What runs a function with a `tf.custom_gradient`, as its module calls it.
_RUNS = [DivertedCalls(custom_gradient, name) for name in ("_eager_mode_decorator", "_graph_mode_decorator")]
_here = threading.local()


@contextlib.contextmanager
def custom_gradients_noted() -> Iterator[None]:
    """Note calls of functions with a `tf.custom_gradient` in a pure run, where Keras variables are tensors.

    TensorFlow gives such a function the gradients of the variables that it reads, and of its arguments, but of no
    tensor that it closes over. So a weight that it reads in a pure run would have none. `tf.recompute_grad` and
    `keras.remat` are custom gradients as well; what they wrap is recomputed anyway, and runs in place.
    """
    with contextlib.ExitStack() as stack:
        for run in _RUNS:
            stack.enter_context(run.to(functools.partial(_custom_gradient, run)))
        yield


def in_custom_gradient() -> bool:
    """Whether this thread is in a function with a `tf.custom_gradient`, of those that are noted."""
    return getattr(_here, "depth", 0) > 0


def _custom_gradient(run: DivertedCalls, function: Callable, args: tuple, kwargs: dict) -> Any:
    if function.__qualname__ == "recompute_grad.<locals>.inner" and function.__module__ == custom_gradient.__name__:
        return inspect.getclosurevars(function).nonlocals["f"](*args, **kwargs)  # what `tf.recompute_grad` wraps

    @functools.wraps(function)  # Variables among the arguments are read outside, and have their gradients.
    def body(*args: Any, **kwargs: Any) -> Any:
        _here.depth = getattr(_here, "depth", 0) + 1
        try:
            return function(*args, **kwargs)
        finally:
            _here.depth -= 1

    return run.original(body, args, kwargs)


_gradients = DivertedCalls(gradients_util, "_GradientsHelper")


@contextlib.contextmanager
def graph_gradients_noted(on_open: Callable[[tf.Tensor], Any]) -> Iterator[None]:
    """Call `on_open` with each floating placeholder that a derivative of this thread goes back to without naming it."""
    # A layer may ask by `tf.gradients` for the derivative of one of its inputs by another, as networks that solve
    # differential equations do. What lies between them is outside of the layer, and in no trace of the layer alone.
    with _gradients.to(functools.partial(_graph_gradient, on_open)):
        yield


def _graph_gradient(on_open: Callable[[tf.Tensor], Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("src_graph") is None:  # TensorFlow names the graphs of its own functions, loops and branches.
        named = {id(x) for x in tf.nest.flatten(xs)}
        for tensor in _reached(tf.nest.flatten(ys), named):
            if tensor.op.type == "Placeholder" and (tensor.dtype.is_floating or tensor.dtype.is_complex):
                on_open(tensor)
    return _gradients.original(ys, xs, *args, **kwargs)


def _reached(tensors: list[tf.Tensor], named: Collection[int]) -> Iterator[tf.Tensor]:
    """The tensors that a walk back comes to, without those that are named and what is only behind them."""
    seen = set(named)
    while tensors:
        tensor = tensors.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
            tensors.extend(tensor.op.inputs)
