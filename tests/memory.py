"""Readings of TensorFlow's allocator, each in a process where no operation ran before.

A peak depends on what its process did before: the allocator hands out whatever chunk is free, up to twice the size
asked for, and earlier tests leave constants and traces behind. So a reading is a function of a test module, given to
`alone` with plain arguments. Its process is forked from a server that has imported TensorFlow, Keras and tfgc but run
no operation, which takes tenths of a second. `pytest --log-cli-level=INFO` prints every reading.
"""

import concurrent.futures
import logging
import multiprocessing
import pathlib
import tempfile
import warnings

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tensorflow", "keras", "tfgc", "pytest"])
_log = logging.getLogger(__name__)


def alone(function, *arguments, start=_SERVER):
    """What `function(*arguments)` returns, or raises, in a fresh process, seeded as every test is."""
    with concurrent.futures.ProcessPoolExecutor(1, start) as pool:
        try:
            found = pool.submit(_call, function, *arguments).result()
        except BaseException:  # The test's time is over, and the child may never end.
            for child in multiprocessing.active_children():
                child.kill()
            raise
    _log.info("%s(%s): %s", function.__name__, ", ".join(getattr(a, "__name__", repr(a)) for a in arguments), found)
    return found


def _call(function, *arguments):
    import keras

    warnings.simplefilter("error")
    warnings.simplefilter("ignore", DeprecationWarning)
    keras.utils.set_random_seed(7)
    return function(*arguments)


def info(which, device="CPU:0"):
    """Bytes of an allocator, "current" or "peak"; refused in the process of the tests, where they mean nothing."""
    import tensorflow as tf

    assert multiprocessing.parent_process() is not None, "give the reading to memory.alone"
    return tf.config.experimental.get_memory_info(device)[which]


def peak(step, *arguments, steps=3, of=max, device="CPU:0"):
    """The largest peak (or what `of` makes) of calls of `step`, in bytes above what was held before each, warmed up."""
    import tensorflow as tf

    step(*arguments)
    peaks = []
    for _ in range(steps):
        tf.config.experimental.reset_memory_stats(device)
        before = info("current", device)
        step(*arguments)
        peaks.append(info("peak", device) - before)
    return of(peaks)


def requested(step, *arguments):
    """The most bytes asked for at once in a call of `step`, warmed up: of the order alone, whatever chunks are free."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    step(*arguments)
    events = []
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder, tf.profiler.experimental.ProfilerOptions(host_tracer_level=2)):
            step(*arguments)
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        planes = xplane_pb2.XSpace.FromString(file.read_bytes()).planes
    for plane in planes:
        stats = {key: stat.name for key, stat in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name in ("MemoryAllocation", "MemoryDeallocation"):
                    seen = {stats[stat.metadata_id]: stat.int64_value for stat in event.stats}
                    events.append((line.timestamp_ns * 1000 + event.offset_ps, name, seen))
    held, most = {}, 0
    for _, name, seen in sorted(events, key=lambda event: event[0]):
        if name == "MemoryAllocation":
            held[seen["addr"]] = seen["requested_bytes"]
        else:
            held.pop(seen["addr"], None)
        most = max(most, sum(held.values()))
    return most
