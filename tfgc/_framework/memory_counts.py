"""What TensorFlow's allocators have handed out, also on CPUs where it is not counted by itself.

TensorFlow counts on a CPU only where it runs the kernels of oneDNN, which it decides by the CPU's instructions: on x86
processors with VNNI (Intel's since 2019, AMD's since 2022). Elsewhere it calls `malloc`, unless a variable of the
environment asks for the allocator that it has for GPUs. It reads the variable when it starts its devices.
"""

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Self

import psutil
import tensorflow as tf

from tfgc._errors import TfgcError, UncountedMemoryWarning, warn
from tfgc._framework.internals import has_onednn, has_onednn_of
from tfgc._units import format_bytes

# The errors that say that no memory is left. What else a trace raises may be the user's, and is answered by running
# plainly. These are handed on: the next call may succeed, and a plain run would need even more.
OUT_OF_MEMORY = (MemoryError, tf.errors.ResourceExhaustedError)
_SWITCH = "TF_CPU_ALLOCATOR_USE_BFC"
_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
UNCOUNTED = (
    "TensorFlow does not count the memory of {}: set the environment variable "
    f"{_SWITCH}=true before TensorFlow starts its devices"
)


def cpu_kernels() -> str:
    """Whose kernels TensorFlow runs on the CPU."""
    return "oneDNN" if has_onednn() else "Eigen"


def runs_by_onednn(dtype: tf.DType) -> bool:
    """Whether oneDNN has the kernels of a dtype on the CPU: of half precision on few, of float64 on none."""
    return has_onednn() and has_onednn_of(dtype)


def count_on_cpu() -> None:
    """Have TensorFlow count what it allocates on the CPU in this process, before it starts its devices."""
    if not has_onednn():
        os.environ.setdefault(_SWITCH, "true")
        os.environ.setdefault(_LIMIT, str(psutil.virtual_memory().total >> 20))  # else 64 GiB


def handed_out(device: str, which: str = "current") -> int:
    """Bytes that are handed out on a device, `current` ones or at the `peak` since `restart`, if TensorFlow counts."""
    try:
        return tf.config.experimental.get_memory_info(device)[which]
    except ValueError as error:
        raise TfgcError(UNCOUNTED.format(device)) from error


def restart(device: str) -> None:
    """Let the peak of a device be what is handed out now, if TensorFlow counts; open `Peaks` keep what they saw."""
    with _lock:
        for open_one in _open:
            open_one.see(device)
        try:
            tf.config.experimental.reset_memory_stats(device)
        except ValueError as error:
            raise TfgcError(UNCOUNTED.format(device)) from error


def devices() -> list[str]:
    """The devices that steps run on: all GPUs, or the CPU where there is none."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices(kind)]


class Peaks:
    """The peaks of devices from now on, whoever restarts their counters meanwhile."""

    def __init__(self, devices: Sequence[str]) -> None:
        with _lock:
            for device in devices:
                restart(device)
            self.held = {device: handed_out(device) for device in devices}
            self._seen = dict(self.held)
            _open.add(self)

    def see(self, device: str) -> None:
        """Take the peak of a device in, before its counter is restarted."""
        if device in self._seen:
            self._seen[device] = max(self._seen[device], handed_out(device, "peak"))

    def read(self) -> dict[str, int]:
        """The most bytes that each device had handed out at once so far."""
        with _lock:
            for device in self.held if self in _open else ():
                self.see(device)
        return dict(self._seen)

    def close(self) -> dict[str, int]:
        """Stop counting; return the peaks."""
        with _lock:
            found = self.read()
            _open.discard(self)
        return found


_lock = threading.RLock()
_open: "weakref.WeakSet[Peaks]" = weakref.WeakSet()


class peak:
    """Measure the peak memory of any code: `with tfgc.peak() as p: step(x, y)`.

    The peak is the most that TensorFlow's allocator had handed out at once on the device meanwhile: the GPU (of several
    the one with the largest peak) or else the CPU. All code counts that runs in the process, also in other threads.
    Blocks nest: an inner one, or `tfgc.PeakMemory`, does not spoil an outer one, but calls of
    `tf.config.experimental.reset_memory_stats` do. When an exception leaves the block, the peak is that until then.

    On CPUs small tensors cannot be seen: with the kernels of oneDNN, TensorFlow takes tensors below 256 KiB from
    another allocator, so that a step of small tensors alone shows next to nothing. Where TensorFlow does not count at
    all, as on CPUs without kernels of oneDNN, an `UncountedMemoryWarning` says how to have it counted.

    Attributes:
        device: Where the bytes were counted, such as `"GPU:0"`.
        peak_bytes: The most bytes that were handed out at once, so far while the block runs; None if not counted.
        held_bytes: Those of them that were handed out before, such as weights and optimizer slots, or None.

    Raises:
        TfgcError: If the block of the same object is entered twice at once.

    Example:
        >>> import tensorflow as tf, tfgc
        >>> with tfgc.peak() as p:
        ...     x = tf.ones([1000, 1000]) + 1
        >>> p.peak_bytes - p.held_bytes >= 4_000_000
        True

        `print(p)` says `peak 812 MB, of which 204 MB were held before, on GPU:0`.
    """

    _peaks: Peaks | None = None
    _is_open = False

    def __enter__(self) -> Self:
        if self._is_open:
            raise TfgcError("this tfgc.peak() is measuring already: make another one for an inner block")
        self._peaks = None
        try:
            self._peaks = Peaks(devices())
        except TfgcError as error:
            warn(f"tfgc.peak shows nothing: {error}", UncountedMemoryWarning)
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        if self._peaks is not None:
            self._peaks.close()

    @property
    def device(self) -> str:
        found = {} if self._peaks is None else self._peaks.read()
        return max(found, key=found.__getitem__, default="")

    @property
    def peak_bytes(self) -> int | None:
        return None if self._peaks is None else self._peaks.read()[self.device]

    @property
    def held_bytes(self) -> int | None:
        return None if self._peaks is None else self._peaks.held[self.device]

    def __repr__(self) -> str:
        if self.peak_bytes is None or self.held_bytes is None:
            return "peak not measured"
        so_far, held = " so far" * self._is_open, format_bytes(self.held_bytes)
        return f"peak{so_far} {format_bytes(self.peak_bytes)}, of which {held} were held before, on {self.device}"
