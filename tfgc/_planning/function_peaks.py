"""What a call of a step makes at its peak, as TensorFlow's allocator counted it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfgc._errors import TfgcError
from tfgc._framework import memory_counts
from tfgc._rewrite import liveness
from tfgc._step.step import Step
from tfgc._step.work import tensor_bytes

# With the kernels of oneDNN, TensorFlow counts no tensors below this many bytes on a CPU.
_UNSEEN = 256 * 1024


def measured(run: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, int | None]:
    """The results of a call, and bytes of its peak: its arguments included, what else was there before left out.

    The second is None where TensorFlow does not count.
    """
    try:
        peaks = memory_counts.Peaks(memory_counts.devices())
    except TfgcError:
        return run(*args, **kwargs), None
    try:
        results = run(*args, **kwargs)
    finally:
        found = peaks.close()
    device = max(found, key=lambda each: found[each] - peaks.held[each])
    flat = tf.nest.flatten((args, kwargs), expand_composites=True)
    # An array is copied to the device in the call.
    there = (t for t in flat if isinstance(t, tf.Tensor) and t.dtype != tf.resource and t.device.endswith(device))
    return results, found[device] - peaks.held[device] + sum(tensor_bytes(t, None) for t in there)


def unseen(step: Step) -> int:
    """Bytes of a step's peak that TensorFlow does not count on the device where steps run."""
    if memory_counts.devices()[0].startswith("GPU") or memory_counts.cpu_kernels() != "oneDNN":
        return 0
    return liveness.peak(step) - liveness.peak(dataclasses.replace(step, small=max(_UNSEEN, step.small)))
