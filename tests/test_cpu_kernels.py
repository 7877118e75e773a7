"""CPUs where TensorFlow leaves the kernels of oneDNN out: no memory is counted, and other kernels need other memory.

TensorFlow decides when it starts, so each setting has a process of its own.
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
from tfgc._measure import case_choice, compare

SWITCH = "TF_CPU_ALLOCATOR_USE_BFC"


def without_onednn(*functions, **settings):
    """What each function finds in one process without oneDNN, where TensorFlow counts memory only if it is asked to."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TF_ENABLE_ONEDNN_OPTS": "0", **settings}.items():
            patch.setenv(name, value)
        return memory.alone(each, functions, start=memory.SPAWN)


def each(functions):
    return {function: function() for function in functions}


@pytest.fixture(scope="module")
def uncounted():
    return without_onednn(shown, of_a_child, workspaces)


@pytest.fixture(scope="module")
def counted():
    return without_onednn(measured_and_predicted, shown, **{SWITCH: "true"})


def dense():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(256), keras.layers.Dense(1)])


def shown():
    """What a callback shows of training, and the warnings."""
    model, callback = dense(), tfgc.PeakMemory()
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tfgc.peak() as p:
            history = model.fit(np.ones((512, 8)), np.ones((512, 1)), 512, epochs=2, verbose=0, callbacks=[callback])
    warned = [str(w.message) for w in caught if w.category is tfgc.UncountedMemoryWarning]
    return warned, history.history, callback.step_bytes, str(p)


@pytest.mark.gate
def test_training_goes_on_where_nothing_can_be_shown(uncounted):
    warned, history, needed, peak = uncounted[shown]
    assert warned == [
        f"tfgc.{name} shows nothing: TensorFlow does not count the memory of CPU:0: set the environment variable "
        "TF_CPU_ALLOCATOR_USE_BFC=true before TensorFlow starts its devices"
        for name in ("peak", "PeakMemory")
    ]
    assert peak == "peak not measured"
    assert len(history["loss"]) == 2
    assert "peak_memory_mb" not in history
    assert needed is None


@pytest.mark.gate
def test_the_variable_that_the_warning_names_has_it_shown(counted):
    warned, history, needed, peak = counted[shown]
    assert not warned
    assert peak.startswith("peak ")
    assert peak.endswith(" were held before, on CPU:0")
    assert len(history["peak_memory_mb"]) == 2
    assert needed > 512 * 256 * 4


def of_a_child():
    (case, *_) = case_choice.plan_cases(dense, 2048, steps=1, modes="graph")
    found = compare.run(case)
    return found.status, found.peak_bytes


@pytest.mark.gate
def test_children_count_where_their_parent_does_not(uncounted):
    status, peak = uncounted[of_a_child]
    assert status == "ok"
    assert peak > 2048 * 256 * 4


def test_with_onednn_nothing_is_asked_for():
    assert memory_counts.has_onednn()
    before = dict(os.environ)
    memory_counts.count_on_cpu()
    assert os.environ == before


SHAPES = [((32, 32, 32, 8), (3, 3, 8, 8), 1), ((4, 64, 64, 32), (3, 3, 32, 48), 2), ((1, 40, 40, 4), (5, 5, 4, 16), 1)]


def of_gradients(dtype):
    """For each shape and gradient of a convolution, what its kernel takes beside its output and what is predicted."""
    found = []
    for shape, kernel, stride in SHAPES:
        x, w = tf.ones(shape, dtype), tf.ones(kernel, dtype)
        upstream, strides = tf.nn.conv2d(x, w, stride, "SAME"), [1, stride, stride, 1]
        kernels = {
            "filter": lambda x, w, u, s=strides: tf.compat.v1.nn.conv2d_backprop_filter(x, w.shape, u, s, "SAME"),
            "input": lambda x, w, u, s=strides: tf.compat.v1.nn.conv2d_backprop_input(x.shape, w, u, s, "SAME"),
        }
        for function in kernels.values():
            with tf.Graph().as_default() as graph:
                function(*(tf.compat.v1.placeholder(dtype, t.shape) for t in (x, w, upstream)))
            (predicted,) = kernel_memory.while_running(graph.get_operations()).values()
            made = function(x, w, upstream).numpy().nbytes
            found.append((memory.peak(function, x, w, upstream) - made, predicted))
    return found


def measured_and_predicted(dtype="float32"):
    tf.zeros([2**27])  # A pool so large that chunks are cut to size.
    return of_gradients(dtype)


@pytest.mark.gate
def test_gradients_of_convolutions_take_what_is_predicted(counted):
    for measured, predicted in counted[measured_and_predicted]:
        assert predicted > 2**19
        assert predicted <= measured + 256 < predicted + 2**18  # Eigen packs blocks of matrices besides.


@pytest.mark.gate
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_gradients_of_convolutions_in_a_dtype_without_onednn_take_what_is_predicted(dtype):
    if memory_counts.runs_by_onednn(tf.as_dtype(dtype)):
        pytest.skip("oneDNN has kernels of half precision on this CPU")
    for measured, predicted in memory.alone(measured_and_predicted, dtype):
        assert predicted > 2**18
        assert measured == pytest.approx(predicted, rel=0.01, abs=2**18)


def test_gradients_of_convolutions_by_onednn_take_nothing_besides():
    with tf.Graph().as_default() as graph:
        x, w = (tf.compat.v1.placeholder(tf.float32, shape) for shape in SHAPES[0][:2])
        tf.gradients(tf.nn.conv2d(x, w, 1, "SAME"), [x, w])
    assert not kernel_memory.while_running(graph.get_operations())


@pytest.mark.parametrize(("dtype", "places"), [("float32", 4 * 4 * 4 * 16), ("float64", 0)])
def test_pooling_keeps_places_in_the_dtypes_of_onednn(dtype, places):
    with tf.Graph().as_default():
        made = tf.nn.max_pool2d(tf.compat.v1.placeholder(dtype, (4, 8, 8, 16)), 2, 2, "SAME")
    assert kernel_memory.kept_for_gradient(made.op) == places


def workspaces():
    with tf.Graph().as_default() as graph:
        tf.nn.max_pool2d(tf.compat.v1.placeholder(tf.float32, (4, 8, 8, 16)), 2, 2, "SAME")
    return [kernel_memory.kept_for_gradient(op) for op in graph.get_operations() if op.type == "MaxPool"]


@pytest.mark.gate
def test_pooling_keeps_places_with_onednn_alone(uncounted):
    assert uncounted[workspaces] == [0]
    assert workspaces() == [4 * 4 * 4 * 16]


WINDOWS = [(3, 6), (3, 7), (2, (17, 15)), (2, 16), (2, (1, 17)), (3, (1, 1, 17))]


def places_of_maxima():
    """For windows in two and three dimensions, what pooling takes beside its output and what is predicted."""
    tf.zeros([2**27])  # As above.
    found = []
    for dimensions, window in WINDOWS:
        pool = tf.nn.max_pool3d if dimensions == 3 else tf.nn.max_pool2d
        x = tf.ones((4, *[18] * 3, 16) if dimensions == 3 else (4, 64, 64, 16))
        with tf.Graph().as_default():
            made = pool(tf.compat.v1.placeholder(x.dtype, x.shape), window, 1, "SAME")
        measured = memory.peak(lambda x, pool=pool, window=window: pool(x, window, 1, "SAME"), x)
        found.append((measured - made.shape.num_elements() * 4, kernel_memory.kept_for_gradient(made.op)))
    return found


@pytest.mark.gate
def test_pooling_takes_the_places_that_are_predicted():
    for measured, predicted in memory.alone(places_of_maxima):
        assert 0 < predicted <= measured < 1.5 * predicted  # A free piece of memory may be larger.


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
    assert any("pools" in segment.nodes for segment in plan.segments if segment.mode == "recompute")
