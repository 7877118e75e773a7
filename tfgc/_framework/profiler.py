"""What TensorFlow's profiler says of the operations of a step."""

import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfgc import _temporary
from tfgc._errors import TfgcError
from tfgc._framework import versions

try:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2
except ImportError as error:
    raise versions.unsupported(error) from error


class Interval(NamedTuple):
    """One run of an operation of some type, in picoseconds, in a thread or on a GPU in a stream, its lane."""

    name: str
    begin: int
    end: int
    kind: str = ""
    lane: int = 0


def operations_run(step: Callable[[], Any]) -> list[Interval]:
    """Each run of an operation in one call of `step`, by the device that ran it.

    On a GPU what its kernels took, not what the CPU took to start them.
    """
    profile = planes(step)
    on_gpus = [run for plane in profile if plane.name.startswith("/device:GPU") for run in _runs(plane, _of_kernel)]
    known = {run.name for run in on_gpus}
    on_hosts = [run for plane in profile if plane.name.startswith("/host:") for run in _runs(plane, _of_host)]
    return on_gpus + [run for run in on_hosts if run.name not in known]


def planes(step: Callable[[], Any]) -> list[Any]:
    """A profile of one call of `step`, an `XPlane` for each device and host.

    Raises `TfgcError` during another profile.
    """
    levels = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0, device_tracer_level=1)
    with _temporary.folder() as folder:
        try:
            tf.profiler.experimental.start(folder, levels)
        except tf.errors.AlreadyExistsError as error:
            raise TfgcError(
                "layers cannot be timed while another profile is being taken: stop that one first"
            ) from error
        try:
            step()
            tf.test.experimental.sync_devices()
        finally:
            tf.profiler.experimental.stop()
        read = versions.attribute(xplane_pb2, "XSpace").FromString
        files = [read(file.read_bytes()) for file in pathlib.Path(folder).rglob("*.xplane.pb")]
    return [plane for file in files for plane in file.planes]


def shared(runs: Iterable[Interval]) -> dict[str, float]:
    """Seconds by operation, where those that run at the same time share it."""
    moments = sorted(moment for run in runs for moment in ((run.begin, 1, run.name), (run.end, -1, run.name)))
    seconds: dict[str, float] = {}
    active: dict[str, int] = {}
    before = 0
    for now, change, name in moments:
        count = sum(active.values())
        for other, times in active.items():
            seconds[other] = seconds.get(other, 0.0) + 1e-12 * (now - before) * times / count
        before = now
        active[name] = active.get(name, 0) + change
        if not active[name]:
            del active[name]
    return seconds


def _runs(plane: Any, label: Callable[[Any, Any], str]) -> Iterator[Interval]:
    """The events of operations, `name:type` by their labels."""
    for line in plane.lines:
        for event in line.events:
            name, colon, kind = label(plane, event).partition(":")
            if colon and kind.isidentifier():
                begin = line.timestamp_ns * 1000 + event.offset_ps
                yield Interval(name, begin, begin + event.duration_ps, kind, line.id)


def _of_host(plane: Any, event: Any) -> str:
    return plane.event_metadata[event.metadata_id].name


def _of_kernel(plane: Any, event: Any) -> str:
    named = (stat for stat in event.stats if plane.stat_metadata[stat.metadata_id].name == "tf_op")
    return next((stat.str_value or plane.stat_metadata[stat.ref_value].name for stat in named), "")
