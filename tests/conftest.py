"""Every test starts from the same seeds and from Keras's default state."""

import collections
import contextlib
import gc
import os
import pathlib

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The same kernels on every x86 processor: TensorFlow leaves those of oneDNN out on some, and counts no memory there.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def pytest_configure(config):
    """Import TensorFlow where tests run: with pytest-xdist that is in the workers alone."""
    if config.getoption("numprocesses", None):
        return
    import keras  # noqa: F401
    from tensorflow.python.framework import op_def_library
    from tensorflow.python.util import tf_stack

    # Traces make objects by the million: at Python's thresholds a tenth of the suite's time goes into looking for
    # garbage.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    # TensorFlow notes for its errors where each operation was made: an eighth of the time of tests that trace. A frozen
    # stack can be shared by operations; one made of Python's frames cannot, since XLA reads it in other threads.
    notes = tf_stack.GraphDebugInfoBuilder()
    notes.AccumulateStackTrace("", "everywhere", tf_stack.extract_stack())
    (stack,) = tf_stack.LoadTracesFromDebugInfo(notes.Build()).values()
    tf_stack.extract_stack = lambda stacklevel=1: stack
    # It also names all types that an operation allows, before it looks whether one of them is given.
    check = op_def_library._SatisfiesTypeConstraint

    def checked(dtype, attr_def, param_name):
        if dtype not in attr_def.allowed_values.list.type:
            check(dtype, attr_def, param_name)

    op_def_library._SatisfiesTypeConstraint = checked
    kept_kernels()


EXACT = ("eager", "fit, eager")
# Whether an operation that counts its draws was made since the test began.
COUNTED = [False]


def kept_kernels():
    """Let TensorFlow keep its kernels where a seed is set or Keras's session cleared, unless one of them counts draws.

    Both throw all of them away, so that those which count draws begin anew. Each of the others takes a millisecond to
    make again, a fifth of the time of tests that train. Who makes an operation that counts asks `get_seed` first.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import random_seed

    api, get_seed = context.pywrap_tfe, random_seed.get_seed
    clear = api.TFE_ContextClearCaches

    def noting_get_seed(op_seed):
        COUNTED[0] = True
        return get_seed(op_seed)

    random_seed.get_seed = noting_get_seed
    api.TFE_ContextClearCaches = lambda handle: clear(handle) if COUNTED[0] else None


@pytest.fixture(autouse=True)
def fresh(request):
    import keras

    from tfgc._framework import graph_optimizer

    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)
    COUNTED[0] = False
    keras.utils.set_random_seed(7)
    # In these modes tests compare bits, of steps that run as they were traced.
    is_exact = hasattr(request.node, "callspec") and request.node.callspec.params.get("mode") in EXACT
    with graph_optimizer.off() if is_exact else contextlib.nullcontext():
        yield
    keras.config.set_dtype_policy("float32")
    # Later tests shall not look through the objects of earlier ones: `tfgc.enable` and `tfgc.disable` go through all.
    gc.collect()
    gc.freeze()


@pytest.fixture
def optimizer_off():
    """TensorFlow's graph optimizer, which fuses operations of one step and not of another, leaves all steps alone."""
    from tfgc._framework import graph_optimizer

    with graph_optimizer.off():
        yield


@pytest.fixture
def lines(tmp_path):
    """What `models.Traced` layers have printed since the last call: how often each ran, forward and backward."""
    path = tmp_path / "lines"

    def read():
        counts = collections.Counter(path.read_text().split("\n") if path.exists() else [])
        path.write_text("")
        del counts[""]
        return dict(counts)

    read.path = path
    return read


@pytest.fixture
def replays(monkeypatch):
    """A list that grows whenever a segment runs again, or is traced to do so."""
    from replays import note_replays

    seen = []
    note_replays(seen.append, monkeypatch.setattr)
    return seen


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    listed = set((pathlib.Path(__file__).parent / "combinations.txt").read_text().splitlines())
    for item in items:
        if item.nodeid in listed:
            item.add_marker(pytest.mark.slow)
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        for item in items:
            if item.get_closest_marker("gpu"):  # a keyword may be a folder of that name
                item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
