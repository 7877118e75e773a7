"""Move tensors to the host's memory and back.

In a graph TensorFlow's optimizer drops an `Identity` that leads to the host and back, and not a `Snapshot`, which
copies nothing itself where nobody else reads what it is given. What goes back waits on the host: a copy that waits on
the device would have its buffer there from the moment the host has the tensor.
"""

import contextlib
import functools
import statistics
import time
from collections.abc import Sequence

import tensorflow as tf

from tfgc._framework.internals import record


def host_of(tensor: tf.Tensor) -> str | None:
    """The device of the host that has the memory to move a tensor to; None if it is there already, or cannot move."""
    device = _device_of(tensor)
    if device is None or not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        return None
    place = tf.DeviceSpec.from_string(device)
    host = place.replace(device_type="CPU", device_index=0)
    return None if place.device_type == "CPU" and place.device_index in (0, None) else host.to_string()


def _device_of(tensor: tf.Tensor) -> str | None:
    if isinstance(tensor, tf.Tensor) and not tf.is_symbolic_tensor(tensor):
        return tensor.backing_device
    # What is placed nowhere goes to an accelerator, if there is one.
    others = [device.name for device in tf.config.list_logical_devices() if device.device_type != "CPU"]
    return tensor.device or (others[0] if others else None)


# Elements of what is copied to measure a link, 64 MiB of float32, and how often
_MEASURED, _ROUNDS = 2**24, 5


@functools.cache
def bandwidth(device: str) -> float | None:
    """Bytes a second in each direction between a device and its host, measured once; None if its memory is the host's.

    The device is given by the full name of a logical one, such as `/device:GPU:0`.
    """
    with tf.init_scope():
        with tf.device(device):
            tensor = tf.zeros(_MEASURED)
        host, seconds = host_of(tensor), []
        if host is None:
            return None
        for _ in range(_ROUNDS + 1):
            start = time.perf_counter()
            HostCopy(tensor, host).fetched(())[-1].numpy()
            seconds.append(time.perf_counter() - start)
    return 2 * _MEASURED * tensor.dtype.size / statistics.median(seconds[1:])


class HostCopy:
    """A copy of a tensor in the memory of the device `host`."""

    def __init__(self, tensor: tf.Tensor, host: str) -> None:
        device = _device_of(tensor)
        assert device is not None
        self._host, self._device = host, device
        self._stored = _moved(tensor, host)

    def fetched(self, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """The tensor on its device again; the copy starts when `after` are there."""
        stored = self._stored
        if not tf.executing_eagerly():
            stored = _moved(stored, self._host, after)
        return _moved(stored, self._device)


def _moved(tensor: tf.Tensor, device: str, after: Sequence[tf.Tensor] = ()) -> tf.Tensor:
    copy = tf.identity if tf.executing_eagerly() else tf.raw_ops.Snapshot
    with record.stop_recording(), tf.device(device):
        with tf.control_dependencies(list(after)) if after else contextlib.nullcontext():
            moved = copy(input=tensor)
    record.record_operation("identity", [moved], [tensor], lambda upstream: [upstream], lambda tangent: [tangent])
    return moved
