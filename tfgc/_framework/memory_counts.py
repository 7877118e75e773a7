"""What TensorFlow's allocators have handed out, also on CPUs where it is not counted by itself.

TensorFlow counts on a CPU only where it runs the kernels of oneDNN, which it decides by the CPU's instructions: on x86
processors with VNNI (Intel's since 2019, AMD's since 2022). Elsewhere it calls `malloc`, unless a variable of the
environment asks for the allocator that it has for GPUs. It reads the variable when it starts its devices.
"""

import os

import psutil
import tensorflow as tf

from tfgc._errors import TfgcError
from tfgc._framework.internals import has_onednn, has_onednn_of

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
    """Let the peak of a device be what is handed out now, if TensorFlow counts."""
    try:
        tf.config.experimental.reset_memory_stats(device)
    except ValueError as error:
        raise TfgcError(UNCOUNTED.format(device)) from error
