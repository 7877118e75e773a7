"""What the scripts that train other people's models share: a process for each case, and the table of what it took."""

import concurrent.futures
import dataclasses
import functools
import importlib
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings

import saved_cases

ROOT = pathlib.Path(__file__).parent.parent
SIDES = ("plain", "enable", "ahead", "70%", "50%", "verify")
STEPS, LAST = 8, 5


@dataclasses.dataclass(frozen=True)
class Collection:
    """Models of packages that the project does not need.

    Attributes:
        module: The name of the script, whose `MODELS` are functions that give a model, a batch, targets and a loss.
        required: What pip installs of them, without dependencies.
        preloaded: Packages of them that are imported once for all cases.
    """

    module: str
    required: tuple[str, ...]
    preloaded: tuple[str, ...]

    @property
    def models(self):
        return importlib.import_module(self.module).MODELS

    @property
    def results(self):
        return saved_cases.RESULTS / f"{self.module}.json"

    @property
    def packages(self):
        return ROOT / f".{self.module}"


def main(collection, description):
    models, results = collection.models, collection.results
    sides = {"--sides": {"nargs": "+", "default": SIDES, "choices": SIDES, "help": "default: all"}}
    arguments = saved_cases.arguments(description, models, sides)
    saved = json.loads(results.read_text()) if results.exists() else {}
    if not arguments.table:
        for name in arguments.networks or models:
            for side in arguments.sides:
                saved.setdefault(name, {})[side] = figures = in_process(collection, measure, collection, name, side)
                print(name, side, figures, flush=True)
                results.write_text(json.dumps(saved, indent=1) + "\n")
    print(*table(saved), sep="\n")


@functools.cache
def _fork_server(collection):
    """Start processes from one that has imported the packages, installed if need be."""
    folder = str(collection.packages)
    if not collection.packages.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*pip, *collection.required], check=True)
    sys.path.append(folder)
    path = [folder, os.environ.get("PYTHONPATH", "")]
    os.environ |= {"PYTHONPATH": os.pathsep.join(path), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([*collection.preloaded, "tfgc"])
    return server


def in_process(collection, function, *arguments):
    """Run one case in its own process, with the packages of a collection; return its figures, or how it failed."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=_fork_server(collection)) as process:
        try:
            return process.submit(function, *arguments).result()
        except Exception as error:  # whatever fails is a row of the table
            return {"failed": f"{type(error).__name__}: {error}"[:600]}


def measure(collection, name, side):
    """Train a model for some steps, or verify it; return the figures."""
    import keras
    import tensorflow as tf

    import tfgc

    told = []
    warnings.showwarning = lambda message, category, *_: told.append(f"{category.__name__}: {message}")
    keras.utils.set_random_seed(1)
    model, x, y, loss = collection.models[name]()
    model.compile(keras.optimizers.Adam(1e-4), loss, metrics=[])
    model.optimizer.build(model.trainable_variables)  # else TensorFlow traces the step twice
    if side == "verify":
        verdict = tfgc.verify(model, None, (x, y), modes="graph", steps=2)
        return {"equal": bool(verdict), "told": told} | ({} if verdict else {"verdict": str(verdict)})
    begin, cpu = time.perf_counter(), time.process_time()
    if side == "ahead":
        tfgc.enable(model, tfgc.plan(model, example=x))
    elif side != "plain":
        tfgc.enable(model, budget=None if side == "enable" else side, verbose=0)
    ahead = time.perf_counter() - begin
    peaks = saved_cases.peaks()
    data = tf.data.Dataset.from_tensors((x, y)).repeat(STEPS)
    model.fit(data, verbose=0, shuffle=False, callbacks=[peaks])
    held = tf.config.experimental.get_memory_info("CPU:0")["current"]
    last = peaks.found[-LAST:]
    figures = {"peak": max(last), "median": statistics.median(last), "held": held, "told": told}
    if side == "plain":
        return figures
    made = tfgc.status(model).plans[0]
    # Of the processor, which depends less on what else the machine does.
    share = (made.planning_seconds or ahead) / (time.perf_counter() - begin)
    return figures | {
        "strategy": made.plan.strategy,
        "planning": share * (time.process_time() - cpu),
        "overhead": made.overhead,
        "predicted": made.predicted_bytes,
        "predicted_plain": made.plain_bytes,
    }


def table(saved):
    """Yield lines of Markdown: the shares of the plain step, which budgets count with what is there all the time."""
    yield "| model | plain | enabled | verify | predicted / measured | ahead | budget 70 % | budget 50 % |"
    yield "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |"
    for name, sides in saved.items():
        if "enable" in sides and "peak" in sides.get("plain", {}):
            yield f"| {name} | " + " | ".join(cells(sides)) + " |"


def cells(sides):
    plain, enabled = sides["plain"], sides["enable"]
    whole = plain["peak"] + plain["held"]
    yield f"{plain['peak'] / 1e6:.0f} MB"
    yield cell(sides, "enable", lambda figures: f"{figures['peak'] / plain['peak']:.2f}")
    yield cell(sides, "verify", lambda figures: "equal" if figures["equal"] else "differs")
    yield f"{enabled['predicted'] / (enabled['peak'] + enabled['held']):.2f}" if "predicted" in enabled else "-"
    yield cell(sides, "ahead", lambda figures: f"{figures['peak'] / plain['peak']:.2f}")
    for side in ("70%", "50%"):
        yield cell(sides, side, lambda figures: f"{(figures['peak'] + figures['held']) / whole:.0%}")


def cell(sides, side, shown):
    """What is shown of one case; one that failed, or was not run, stands as that."""
    figures = sides.get(side, {"failed": "not run"})
    return figures["failed"].partition(":")[0] if "failed" in figures else shown(figures)


def numbers(shape, below=None):
    import numpy as np

    random = np.random.default_rng(0)
    return random.normal(size=shape).astype("float32") if below is None else random.integers(0, below, shape, "int32")
