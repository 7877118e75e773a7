"""CPUs where TensorFlow leaves the kernels of oneDNN out: no memory is counted, and other kernels need other memory.

TensorFlow decides when it starts, so each test has a process of its own.
"""

import os
import warnings

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf

import tfgc
from tfgc._costs import kernel_memory
from tfgc._framework import memory_counts

SWITCH = "TF_CPU_ALLOCATOR_USE_BFC"


@pytest.fixture
def without_onednn(monkeypatch):
    """Runs a function in a process without oneDNN, where TensorFlow counts memory only if it is asked to."""
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")

    def run(function, *arguments, counted):
        if counted:
            monkeypatch.setenv(SWITCH, "true")
        return memory.alone(function, *arguments, start=memory.SPAWN)

    return run


def dense():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(256), keras.layers.Dense(1)])


def shown():
    """What a callback shows of training, and the warnings."""
    model, callback = dense(), tfgc.PeakMemory()
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(np.ones((512, 8)), np.ones((512, 1)), 512, epochs=2, verbose=0, callbacks=[callback])
    warned = [str(w.message) for w in caught if w.category is tfgc.UncountedMemoryWarning]
    return warned, history.history, callback.step_bytes


@pytest.mark.gate
def test_training_goes_on_where_nothing_can_be_shown(without_onednn):
    warned, history, needed = without_onednn(shown, counted=False)
    assert warned == [
        "tfgc.PeakMemory shows nothing: TensorFlow does not count the memory of CPU:0: set the environment variable "
        "TF_CPU_ALLOCATOR_USE_BFC=true before TensorFlow starts its devices"
    ]
    assert len(history["loss"]) == 2
    assert "peak_memory_mb" not in history
    assert needed is None


@pytest.mark.gate
def test_the_variable_that_the_warning_names_has_it_shown(without_onednn):
    warned, history, needed = without_onednn(shown, counted=True)
    assert not warned
    assert len(history["peak_memory_mb"]) == 2
    assert needed > 512 * 256 * 4


def compared():
    return [(m.status, m.peak_bytes) for m in tfgc.compare(dense, 2048, strategies=["uniform:2"], steps=1)]


@pytest.mark.gate
def test_children_count_where_their_parent_does_not(without_onednn):
    rows = without_onednn(compared, counted=False)
    assert [status for status, _ in rows] == ["ok"] * 4
    assert all(peak > 2048 * 256 * 4 for _, peak in rows)


def test_with_onednn_nothing_is_asked_for():
    assert memory_counts.has_onednn()
    before = dict(os.environ)
    memory_counts.count_on_cpu()
    assert os.environ == before


SHAPES = [((32, 32, 32, 8), (3, 3, 8, 8), 1), ((4, 64, 64, 32), (3, 3, 32, 48), 2), ((1, 40, 40, 4), (5, 5, 4, 16), 1)]


def of_gradients():
    """For each shape and gradient of a convolution, what its kernel takes beside its output and what is predicted."""
    found = []
    for shape, kernel, stride in SHAPES:
        x, w = tf.ones(shape), tf.ones(kernel)
        upstream, strides = tf.nn.conv2d(x, w, stride, "SAME"), [1, stride, stride, 1]
        kernels = {
            "filter": lambda x, w, u, s=strides: tf.compat.v1.nn.conv2d_backprop_filter(x, w.shape, u, s, "SAME"),
            "input": lambda x, w, u, s=strides: tf.compat.v1.nn.conv2d_backprop_input(x.shape, w, u, s, "SAME"),
        }
        for function in kernels.values():
            with tf.Graph().as_default() as graph:
                function(*(tf.compat.v1.placeholder(tf.float32, t.shape) for t in (x, w, upstream)))
            (predicted,) = kernel_memory.while_running(graph.get_operations()).values()
            made = function(x, w, upstream).numpy().nbytes
            found.append((memory.peak(function, x, w, upstream) - made, predicted))
    return found


def measured_and_predicted():
    tf.zeros([2**27])  # A pool so large that chunks are cut to size.
    return of_gradients()


@pytest.mark.gate
def test_gradients_of_convolutions_take_what_is_predicted(without_onednn):
    for measured, predicted in without_onednn(measured_and_predicted, counted=True):
        assert predicted > 2**19
        assert predicted <= measured + 256 < predicted + 2**18  # Eigen packs blocks of matrices besides.


def workspaces():
    with tf.Graph().as_default() as graph:
        tf.nn.max_pool2d(tf.compat.v1.placeholder(tf.float32, (4, 8, 8, 16)), 2, 2, "SAME")
    return [kernel_memory.kept_for_gradient(op) for op in graph.get_operations() if op.type == "MaxPool"]


@pytest.mark.gate
def test_pooling_keeps_places_with_onednn_alone(without_onednn):
    assert without_onednn(workspaces, counted=False) == [0]
    assert workspaces() == [4 * 4 * 4 * 16]


class PoolsSome(keras.layers.Layer):
    """Pools the samples that it finds positive: nobody knows how many."""

    def call(self, x):
        some = tf.boolean_mask(x, tf.reduce_sum(x, [1, 2, 3]) > 0)
        return x + tf.reduce_mean(tf.nn.max_pool2d(some, 2, 2, "SAME"))


@pytest.mark.filterwarnings("error")
def test_pooling_of_an_unknown_number_of_samples_runs_twice():
    layers = [keras.layers.Conv2D(4, 3), PoolsSome(name="pools"), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((8, 8, 4)), *layers])
    plan = tfgc.plan(model, 8, strategy="uniform", segments=2)
    assert "pools" in plan.recomputed_layers
