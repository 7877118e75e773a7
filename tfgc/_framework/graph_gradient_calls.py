"""Calls of `tf.gradients` in a trace, which differentiates whatever lies between two tensors of a graph.

A layer may ask for the derivative of one of its inputs by another, as networks that solve differential equations do.
What lies between them is outside of the layer, and in no trace of the layer alone.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from tfgc._framework import versions
from tfgc._framework.diverted_calls import DivertedCalls
from tfgc._framework.internals import gradients_util

_NAME = "_GradientsHelper"
_calls = DivertedCalls(gradients_util, _NAME, versions.attribute(gradients_util, _NAME))


@contextlib.contextmanager
def noted(on_open: Callable[[tf.Tensor], Any]) -> Iterator[None]:
    """Call `on_open` with each floating placeholder that a derivative of this thread goes back to without naming it."""
    with _calls.to(functools.partial(_run_noted, on_open)):
        yield


def _run_noted(on_open: Callable[[tf.Tensor], Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("src_graph") is None:  # TensorFlow names the graphs of its own functions, loops and branches.
        named = {id(x) for x in tf.nest.flatten(xs)}
        for tensor in _reached(tf.nest.flatten(ys), named):
            if tensor.op.type == "Placeholder" and (tensor.dtype.is_floating or tensor.dtype.is_complex):
                on_open(tensor)
    return _calls.original(ys, xs, *args, **kwargs)


def _reached(tensors: list[tf.Tensor], named: Collection[int]) -> Iterator[tf.Tensor]:
    """The tensors that a walk back comes to, without those that are named and what is only behind them."""
    seen = set(named)
    while tensors:
        tensor = tensors.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
            tensors.extend(tensor.op.inputs)
