"""Build, train and count one case, in this process: what a child process measures."""

import dataclasses
import functools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc import zoo
from tfgc._core.modes import PLAIN
from tfgc._core.plan import Plan
from tfgc._errors import TfgcError
from tfgc._framework import memory_counts
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._measure import any_model, examples, peers, step_timeline
from tfgc._records.job import Case
from tfgc._tracing import synthetic
from tfgc._training import enable

_SEED = 0


def measure(case: Case) -> dict[str, Any]:
    """Run the case here and now; return the measured fields of a `Measurement`."""
    memory_counts.count_on_cpu()
    model, batch, call, detail = _made(case)
    step = _step(model, call, case)
    before = _snapshot(model) if case.compare_first_update else {}
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    memory = functools.partial(memory_counts.handed_out, device)
    started = time.time()
    seconds, peaks, losses, update = [], [], [], {}
    for _ in range(case.steps + 1):
        memory_counts.restart(device)
        resident = memory()
        begin = time.perf_counter()
        losses.append(float(step(*batch)))
        seconds.append(time.perf_counter() - begin)
        peaks.append(memory("peak") - resident)
        if case.compare_first_update and len(losses) == 1:
            update = {path: value - before[path] for path, value in _snapshot(model).items()}
    timeline = step_timeline.timeline(lambda: float(step(*batch)), memory)
    resident, ended = memory(), time.time()
    return {
        "wrong": _wrong(case, update, batch) if case.compare_first_update else (),
        "time_ratio": _time_ratio(case, step, batch) if case.time_in_turn and case.plan is not None else None,
        "detail": detail,
        "started": started,
        "ended": ended,
        "peak_bytes": int(statistics.median(peaks[1:])),
        "peak_bytes_max": max(peaks[1:]),
        "resident_bytes": resident,
        "step_seconds": statistics.median(seconds[1:]),
        "first_step_seconds": seconds[0],
        "losses": tuple(losses),
        "timeline": timeline,
        "device": device,
        "machine": machine(tensorflow=tf.__version__, keras=keras.__version__, kernels=memory_counts.cpu_kernels()),
    }


def machine(**frameworks: str) -> dict[str, Any]:
    """What a case runs on, with what there is to say of the frameworks that it uses."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "tfgc": sys.modules["tfgc"].__version__,  # also where it is not installed but on the path
        **frameworks,
    }


def seeded(build: Callable[..., keras.Model] | str, image_size: int | None) -> keras.Model:
    """The model of a job, the same each time that it is built."""
    keras.utils.set_random_seed(_SEED)
    if isinstance(build, str):
        return zoo.build(build, image_size)
    return build() if image_size is None else build(image_size=image_size)


def _made(case: Case) -> tuple[keras.Model, tuple[Any, ...], Callable[..., Any], str]:
    """The model of a case, what its step takes and what it calls, and how many segments its plan has."""
    with peers.build_scope(case.peer, lambda: seeded(*case.build)):
        model = seeded(*case.build)
    batch: tuple[Any, ...]
    if case.example is None:
        batch = synthetic.batch(model, case.batch_size, case.input_shapes)
    else:
        example = any_model.completed(model, case.example, case.batch_size, case.optimizer)
        batch = (examples.batch(example, case.batch_size),)
    if case.plan is None:
        return model, batch, peers.wrap_call(case.peer, model), ""
    plan = Plan.from_json(case.plan)
    enable.enable(model, plan, compile_segments=case.mode != "eager")
    return model, batch, model, f"{len(plan.segments)} segments"


def _step(model: keras.Model, call: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """One step of training, as a user without tfgc writes it; `call` runs the model."""
    if not model.trainable_variables:
        raise TfgcError(f"{model.name!r} has no trainable weights")
    if case.example is not None:
        return any_model.step(model, case.mode)
    if not any(tf.as_dtype(output.dtype).is_floating for output in model.outputs):
        raise TfgcError(f"{model.name!r} has no output of floating-point numbers, of which a squared error trains it")
    optimizer: Any = keras.optimizers.SGD(0.01) if case.optimizer is None else keras.optimizers.get(case.optimizer)
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            made = zip(keras.tree.flatten(call(x, training=True)), y)
            losses = [tf.reduce_mean(tf.square(tf.cast(p, t.dtype) - t)) for p, t in made if t.dtype.is_floating]
            losses += [tf.reduce_sum(extra) for extra in model.losses]
            loss = tf.add_n([tf.cast(one, losses[0].dtype) for one in losses])
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return any_model.traced(step, case.mode)


def _snapshot(model: keras.Model) -> dict[str, Any]:
    """Every variable's value, seeds included, by its path."""
    return {v.path: v.numpy().astype("float64") for v in model.variables}


def _wrong(case: Case, update: dict[str, Any], batch: tuple[Any, ...]) -> tuple[str, ...]:
    """Which parts of the first update differ from plain steps: in both modes, and with weights one rounding off."""
    references = []  # Plain steps run here, after everything that is measured.
    for mode, nudge in (("graph", 0.0), ("eager", 0.0), ("graph", 2.0**-23)):
        keras.utils.clear_session()
        plain = dataclasses.replace(case, mode=mode, peer=None, plan=None)
        model, _, call, _ = _made(plain)
        for variable in model.trainable_variables:
            value = variable.numpy()
            wave = np.cos(np.arange(value.size)).reshape(value.shape)
            variable.assign(value * (1 + nudge * wave))
        before = _snapshot(model)
        _step(model, call, plain)(*batch)
        references.append({path: value - before[path] for path, value in _snapshot(model).items()})
    return peers.differing_parts(update, references, [v.path for v in model.trainable_variables])


def _time_ratio(case: Case, step: Callable[..., Any], batch: tuple[Any, ...]) -> float | None:
    """The median time of a step over that of a plain one in the same loop, in as many pairs as steps are counted.

    Machines get slower and faster meanwhile, by more than plans differ. None if both do not fit into memory together.
    """
    try:
        return _in_turn(case, step, batch)
    except OUT_OF_MEMORY:
        return None


def _in_turn(case: Case, step: Callable[..., Any], batch: tuple[Any, ...]) -> float:
    keras.utils.clear_session()  # The plain model is built after everything else is measured.
    plain = dataclasses.replace(case, mode=PLAIN[case.mode], peer=None, plan=None)
    model, plain_batch, call, _ = _made(plain)
    plain_step, ratios = _step(model, call, plain), []
    for _ in range(case.steps + 1):
        seconds = []
        for run in (lambda: plain_step(*plain_batch), lambda: step(*batch)):
            begin = time.perf_counter()
            float(run())
            seconds.append(time.perf_counter() - begin)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios[1:])
