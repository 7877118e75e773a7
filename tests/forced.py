"""Pytest plugins that run other people's Keras tests with tfgc forced on, and report what it did.

`Models` has every model train by a plan of its steps and calls, which are cut at random, however little that saves.
`Layers` follows each `run_layer_test` of Keras by the comparisons of `layerwise`. Both note the outcome of each test.
"""

import functools
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import threading
import types

import keras
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.testing.test_case import TestCase
from layerwise import arguments_of, compare, reason
from random_steps import at_random
from replays import note_replays

import tfgc
from tfgc._error_texts import one_line
from tfgc._errors import TfgcError
from tfgc._framework import keras_state
from tfgc._planning.step_plans import StepPlans
from tfgc._tracing import functional_graphs


class Plain:
    """Notes what became of each test: lines of JSON in `path`, one as it begins and one as it ends.

    Tests that are noted there already are left out.
    """

    def __init__(self, path):
        self.path, self._row = path, {}

    def pytest_configure(self, config):
        for name in ("requires_trainable_backend", "multi_device"):
            config.addinivalue_line("markers", f"{name}: a mark of Keras's")

    def pytest_collection_modifyitems(self, items):
        noted = noted_in(self.path)
        items[:] = [item for item in items if _name(item) not in noted]

    def pytest_sessionstart(self):
        note_replays(lambda piece: self.count("replays"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self._row = {"test": _name(item), "outcome": "began"}
        self._write()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if self._row["outcome"] in ("began", "passed") and (report.when == "call" or not report.passed):
            self._row["outcome"] = report.outcome
            if report.failed:
                self._row |= {
                    "words": one_line(call.excinfo.value),
                    "wrong": call.excinfo.errisinstance(AssertionError),
                }
        return report

    def pytest_runtest_logfinish(self):
        self._write()

    def _write(self):
        with open(self.path, "a") as lines:
            lines.write(json.dumps(self._row) + "\n")

    def count(self, what, n=1):
        self._row[what] = self._row.get(what, 0) + n

    def note(self, what, words):
        noted = self._row.setdefault(what, {})
        noted[words] = noted.get(words, 0) + 1


class Models(Plain):
    """Forces tfgc on in whatever trains or is called for training; a layer's `train_step` is a function."""

    def pytest_sessionstart(self):
        made, called = TensorFlowTrainer.make_train_function, keras.Layer.__call__

        @functools.wraps(made)
        def make_train_function(model, force=False):
            if isinstance(model, keras.Model):
                self._enable(model)
            elif not model.run_eagerly and (force or model.train_function is None):
                model.train_step = tfgc.function(types.MethodType(type(model).train_step, model), verbose=0)
                self.count("enabled")
            return made(model, force=force)

        @functools.wraps(called)
        def call(layer, *args, **kwargs):
            if isinstance(layer, keras.Model) and kwargs.get("training") is not False and _is_real(args, kwargs):
                self._enable(layer)
            return called(layer, *args, **kwargs)

        def least(plans):
            plan = at_random(plans, 0)
            self.count("replays", sum(bool(op.segment) for op in plan.step.ops.values()) > 0)
            return plan

        TensorFlowTrainer.make_train_function, keras.Layer.__call__, StepPlans.least = make_train_function, call, least

    def pytest_warning_recorded(self, warning_message):
        if issubclass(warning_message.category, tfgc.NotReplayableWarning):
            self.note("kept", reason(warning_message.message))

    def _enable(self, model):
        if not any(functional_graphs.is_patched_call(layer) for layer in model._flatten_layers()):
            try:
                tfgc.enable(model, verbose=0)
                self.count("enabled")
            except TfgcError as error:
                self.note("not enabled", reason(one_line(error)))


class Layers(Plain):
    """Compares each layer that Keras tests."""

    def pytest_sessionstart(self):
        super().pytest_sessionstart()
        run = TestCase.run_layer_test

        @functools.wraps(run)
        def run_layer_test(test, *args, **kwargs):
            run(test, *args, **kwargs)
            arguments = arguments_of(run, (test, *args), kwargs)
            layer_cls = arguments["layer_cls"]
            for found in compare(layer_cls, arguments):
                self.note("compared", found.outcome)
                for why in set(found.kept):
                    self.note("kept", why)
                if found.outcome in ("mismatch", "crash", "plain"):
                    self._row.setdefault("told", []).append(
                        [found.outcome, f"{layer_cls.__name__}, {found.what}: {found.words}"]
                    )

        TestCase.run_layer_test = run_layer_test


ARMS = {"plain": Plain, "models": Models, "layers": Layers}


def noted_in(path):
    """The last row of each test in a file of lines, by name; none if there is no file."""
    if not os.path.exists(path):
        return {}
    with open(path) as lines:
        return {row["test"]: row for row in map(json.loads, lines)}


def _name(item):
    return item.nodeid.partition("::")[2]


def _is_real(args, kwargs):
    """Whether a call is the outermost one, on data: a model that is being traced is enabled too late."""
    if not tf.executing_eagerly() or keras_state.stateless_scope_here() or keras_state.call_context() is not None:
        return False
    return not any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten((args, kwargs)))


class Missing(types.ModuleType):
    """A framework that is not installed, so that what imports it is collected; what uses it fails plainly, too."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class MissingFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last, where nobody else has found the module."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("grain", "jax", "pandas", "torch"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Missing(spec.name)

    def exec_module(self, module):
        pass


# What Keras's tests import from the `conftest.py` of its repository, which its wheel lacks.
CONFTEST = """
import keras, pytest

def skip_if_backend(name, reason):
    return pytest.mark.skipif(keras.backend.backend() == name, reason=reason)
"""


def run(name, arm, lines):
    """Run the tests of a file of the installed Keras, or of any path, and end this process with pytest's exit code."""
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()  # outlives nobody
    # Keras's loaders of data start processes that inherit what they read; this one would have them made anew.
    multiprocessing.set_start_method("fork", force=True)
    path = pathlib.Path(keras.src.__file__).parent / name
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        settings = pathlib.Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n")
        pathlib.Path(folder, "conftest.py").write_text(CONFTEST)
        sys.path.insert(0, folder)
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        options = ["-q", "-c", str(settings), "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
        options += ["-W", "always::tfgc.NotReplayableWarning"]
        sys.meta_path.append(MissingFinder())
        code = pytest.main([*options, str(path)], plugins=[ARMS[arm](lines)])
    sys.exit(int(code))
