"""Build, train and count one case, in this process: what a child process measures."""

import functools
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc import zoo
from tfgc._core.plan import Plan
from tfgc._errors import TfgcError
from tfgc._framework import memory_counts
from tfgc._measure import any_model, examples
from tfgc._records.job import Case
from tfgc._tracing import synthetic
from tfgc._training import enable

_SEED = 0
_SAMPLE_SECONDS = 0.002
# Points of the line of bytes over time: a plot is 3.5 inches wide, and a results file holds a hundred lines.
_POINTS = 120


def measure(case: Case) -> dict[str, Any]:
    """Run the case here and now; return the measured fields of a `Measurement`."""
    memory_counts.count_on_cpu()
    model, batch, plan = _made(case)
    step = _step(model, case, plan)
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    memory = functools.partial(memory_counts.handed_out, device)
    started = time.time()
    seconds, peaks, losses = [], [], []
    for _ in range(case.steps + 1):
        memory_counts.restart(device)
        resident = memory()
        begin = time.perf_counter()
        losses.append(float(step(*batch)))
        seconds.append(time.perf_counter() - begin)
        peaks.append(memory("peak") - resident)
    course = timeline(lambda: float(step(*batch)), memory)
    resident, ended = memory(), time.time()
    return {
        "detail": "" if plan is None else f"{len(plan.segments)} segments",
        "started": started,
        "ended": ended,
        "peak_bytes": int(statistics.median(peaks[1:])),
        "peak_bytes_max": max(peaks[1:]),
        "resident_bytes": resident,
        "step_seconds": statistics.median(seconds[1:]),
        "first_step_seconds": seconds[0],
        "losses": tuple(losses),
        "timeline": course,
        "device": device,
        "machine": machine(),
    }


def in_turn(cases: Sequence[Case]) -> dict[str, tuple[float, ...]]:
    """Time cases here and now, step by step in turn; return the seconds of each round by `Case.name`.

    The machine gets slower and faster meanwhile, by more than plans differ: only steps of one round compare.
    """
    memory_counts.count_on_cpu()
    steps = {}
    for case in cases:
        keras.utils.clear_session()  # The same names in each, which plans go by.
        model, batch, plan = _made(case)
        steps[case.name] = functools.partial(_step(model, case, plan), *batch)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(cases[0].steps + 1):
        for name, step in steps.items():
            begin = time.perf_counter()
            float(step())
            seconds[name].append(time.perf_counter() - begin)
    return {name: tuple(found[1:]) for name, found in seconds.items()}


def machine() -> dict[str, Any]:
    """What a case runs on."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "tfgc": sys.modules["tfgc"].__version__,  # also where it is not installed but on the path
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "kernels": memory_counts.cpu_kernels(),
    }


def seeded(build: Callable[..., keras.Model] | str, image_size: int | None) -> keras.Model:
    """The model of a job, the same each time that it is built."""
    keras.utils.set_random_seed(_SEED)
    if isinstance(build, str):
        return zoo.build(build, image_size)
    made = build() if image_size is None else build(image_size=image_size)
    return zoo.checked(build, made)


def _made(case: Case) -> tuple[keras.Model, tuple[Any, ...], Plan | None]:
    """The model of a case, what its step takes, and its plan, which is on in the model but for whole steps."""
    model = seeded(*case.build)
    batch: tuple[Any, ...]
    if case.example is None:
        batch = synthetic.batch(model, case.batch_size, case.input_shapes)
    else:
        example = any_model.completed(model, case.example, case.batch_size, case.optimizer)
        batch = (examples.batch(example, case.batch_size),)
    plan = None if case.plan is None else Plan.from_json(case.plan)
    if plan is not None and case.mode != "graph":
        enable.enable(model, plan)
    return model, batch, plan


def _step(model: keras.Model, case: Case, plan: Plan | None) -> Callable[..., Any]:
    """One step of training, as a user without tfgc writes it."""
    if not model.trainable_variables:
        raise TfgcError(f"{model.name!r} has no trainable weights")
    if case.example is not None:
        return any_model.step(model, case.mode, plan)
    if not any(tf.as_dtype(output.dtype).is_floating for output in model.outputs):
        raise TfgcError(f"{model.name!r} has no output of floating-point numbers, of which a squared error trains it")
    optimizer: Any = keras.optimizers.SGD(0.01) if case.optimizer is None else keras.optimizers.get(case.optimizer)
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            made = zip(keras.tree.flatten(model(x, training=True)), y)
            losses = [tf.reduce_mean(tf.square(tf.cast(p, t.dtype) - t)) for p, t in made if t.dtype.is_floating]
            losses += [tf.reduce_sum(extra) for extra in model.losses]
            loss = tf.add_n([tf.cast(one, losses[0].dtype) for one in losses])
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return any_model.traced(step, case.mode, plan)


def timeline(step: Callable[[], float], allocated: Callable[[], int]) -> tuple[tuple[float, int], ...]:
    """Pairs (seconds, bytes above those at its start) over one more step, which is not a timed one."""
    samples = [(0.0, allocated())]
    done = threading.Event()
    begin = time.perf_counter()

    def sample() -> None:
        while not done.is_set():
            samples.append((time.perf_counter() - begin, allocated()))
            time.sleep(_SAMPLE_SECONDS)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        step()
    finally:  # else the process would wait for the thread when it ends
        done.set()
        thread.join()
    base = samples[0][1]
    return tuple((round(when, 4), count - base) for when, count in thinned(samples))


def thinned(samples: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most `_POINTS` of the samples, pairs (when, bytes): the largest of each group, so that no peak is lost.

    >>> len(thinned([(0.1, 3), (0.2, 5), (0.3, 4)] * 100))
    100
    """
    stride = -(-len(samples) // _POINTS)
    return [max(samples[i : i + stride], key=lambda pair: pair[1]) for i in range(0, len(samples), stride)]
