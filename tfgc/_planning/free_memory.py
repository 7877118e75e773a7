"""What `budget="auto"` is made of: the bytes that a training step can still get.

On a GPU that is the limit of TensorFlow's allocator less what it has handed out. TensorFlow reserves nearly all of
the GPU when it starts, so that the driver then reports almost nothing as free. On a CPU it is what the machine has
available, or what is left of the limits of the control groups that the process runs in (a container, a job), if that is
less.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import psutil
import tensorflow as tf

from tfgc._errors import OptionError
from tfgc._framework.memory_counts import handed_out


def free_bytes() -> int:
    """Bytes that are free now on the first GPU, or where there is none in the machine or container.

    What has been handed out already, such as the weights of a model that is built, is not free. Raises `OptionError` if
    TensorFlow does not report the limit of its GPU.
    """
    if not tf.config.list_physical_devices("GPU"):
        return machine_bytes()
    limit = next((d.memory_limit_bytes for d in devices() if d.name.endswith("device:GPU:0")), 0)
    if limit <= 0:
        raise OptionError("budget='auto': TensorFlow does not report how much memory it may use on GPU:0; give bytes")
    return max(0, limit - handed_out("GPU:0"))


def devices() -> Sequence[Any]:
    """TensorFlow's devices, each with `name`, and `memory_limit_bytes` of the allocator that is in use."""
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        return session.list_devices()


def machine_bytes() -> int:
    """Bytes that are available in the machine, or left in the container if that is less."""
    available, left = psutil.virtual_memory().available, container_bytes()
    return available if left is None else min(available, left)


def container_bytes(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int | None:
    """Bytes that are left of the memory limits of the process's control groups (versions 1 and 2); None without any.

    File caches that are not in use count as free, as they do in the machine. Every group around the own one counts.
    """
    left: list[int] = []
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, usage, cache = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit, usage, cache = (
                f"{root}/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
            )  # fmt: skip
        else:
            continue
        # Inside of a container the path may be the one outside: then the own group is at the root.
        group = pathlib.PurePath(path.lstrip("/"))
        for folder in [pathlib.Path(base, group), *(pathlib.Path(base, parent) for parent in group.parents)]:
            most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
            if most.isdigit() and used.isdigit():
                cached = dict(entry.split() for entry in _text(folder / "memory.stat").splitlines())
                left.append(max(0, int(most) - int(used) + int(cached.get(cache, 0))))
    return min(left, default=None)


def _text(path: str | pathlib.Path) -> str:
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""
