"""Move tensors to the host's memory and back.

In a graph TensorFlow's optimizer drops an `Identity` that leads to the host and back, and not a `Snapshot`, which
copies nothing itself where nobody else reads what it is given. What goes back waits on the host: a copy that waits on
the device would have its buffer there from the moment the host has the tensor.
"""

import functools
import statistics
import time
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc._framework.internals import context, record

# What under XLA is said of what is stored here.
XLA = (
    "the plan stores checkpoints in host memory, and XLA keeps all buffers of a step on one device: leave jit_compile "
    "out, or use a plan without offload"
)


def places(tensor: tf.Tensor) -> tuple[str, str] | None:
    """The device of the host that has the memory to move a tensor to, and its own; None if that is one, or it stays."""
    device = _device_of(tensor)
    if device is None or not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        return None
    place = tf.DeviceSpec.from_string(device)
    host = place.replace(device_type="CPU", device_index=0)
    is_host = place.device_type == "CPU" and place.device_index in (0, None)
    return None if is_host else (host.to_string(), device)


def _device_of(tensor: tf.Tensor) -> str | None:
    if isinstance(tensor, tf.Tensor) and not tf.is_symbolic_tensor(tensor):
        return tensor.backing_device
    # What is placed nowhere goes where the function that is traced is called, or to an accelerator, if there is one.
    others = [device.name for device in tf.config.list_logical_devices() if device.device_type != "CPU"]
    here: Any = context.context()
    return tensor.device or here.device_name or (others[0] if others else None)


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
        seconds = []
        if places(tensor) is None:
            return None
        for _ in range(_ROUNDS + 1):
            start = time.perf_counter()
            fetched(stored(tensor))[-1].numpy()
            seconds.append(time.perf_counter() - start)
    return 2 * _MEASURED * tensor.dtype.size / statistics.median(seconds[1:])


class _HostCopy(NamedTuple):
    """A tensor in the memory of the host, and the device that it came from."""

    tensor: tf.Tensor
    host: str
    device: str


def stored(tensor: tf.Tensor) -> Any:
    """A copy of a tensor in the host's memory, to be `fetched`; the tensor itself where it is there already."""
    if (found := places(tensor)) is None:
        return tensor
    return _HostCopy(_moved(tensor, found[0]), *found)


def fetched(stored: Any) -> tf.Tensor:
    """What was `stored` on its device again. In a graph the host waits for the control dependencies that are given."""
    if not isinstance(stored, _HostCopy):
        return stored
    tensor, host, device = stored
    if not tf.executing_eagerly():
        tensor = _moved(tensor, host)
    with tf.control_dependencies(None):
        return _moved(tensor, device)


def _moved(tensor: tf.Tensor, device: str) -> tf.Tensor:
    copy = tf.identity if tf.executing_eagerly() else tf.raw_ops.Snapshot
    with record.stop_recording(), tf.device(device):
        moved = copy(input=tensor)
    record.record_operation("identity", [moved], [tensor], lambda upstream: [upstream], lambda tangent: [tangent])
    return moved
