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


class Peak:
    """The peak of what runs from now on, until it is closed.

    Args:
        given: Arguments of what runs: what of them is on the device is part of it, what else was there before is not.

    Raises:
        TfgcError: Where TensorFlow does not count.
    """

    def __init__(self, given: Any = ()) -> None:
        self._peaks, self._given = memory_counts.Peaks(memory_counts.devices()), dict[str, int]()
        for tensor in tf.nest.flatten(given, expand_composites=True):
            if isinstance(tensor, tf.Tensor) and tensor.dtype != tf.resource:  # an array is copied to the device
                device = tensor.device.rpartition("/device:")[-1]
                self._given[device] = self._given.get(device, 0) + tensor_bytes(tensor, None)

    def close(self, makes_variables: bool = False) -> int:
        """Bytes of the peak; without variables, if all that is left is taken for these."""
        found, before = self._peaks.close(), self._peaks.held
        device = max(found, key=lambda each: found[each] - before[each])
        held = max(before[device], memory_counts.handed_out(device)) if makes_variables else before[device]
        return found[device] - held + self._given.get(device, 0)


def measured(run: Callable[..., Any], args: Any, kwargs: Any, makes_variables: bool = False) -> tuple[Any, int | None]:
    """The results of a call, and bytes of its peak as `Peak` counts them; None where TensorFlow does not count."""
    try:
        peak = Peak((args, kwargs))
    except TfgcError:
        return run(*args, **kwargs), None
    try:
        results = run(*args, **kwargs)
    finally:
        made = peak.close(makes_variables)
    return results, made


def unseen(step: Step) -> int:
    """Bytes of a step's peak that TensorFlow does not count on the device where steps run."""
    if memory_counts.devices()[0].startswith("GPU") or memory_counts.cpu_kernels() != "oneDNN":
        return 0
    return liveness.peak(step) - liveness.peak(dataclasses.replace(step, small=max(_UNSEEN, step.small)))
