"""Variables that an eager call reads all at once are read and recorded as if one by one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from memory import alone

import tfgc
from tfgc._framework import private_api, variable_reads


def recorded_read(variables):
    """The values of variables, which the tapes that are active know of."""
    values, handles = private_api.read(variables)
    variable_reads.record_each([values[i] for i in handles], [*handles.values()])
    return values


def keras_variables():
    """Variables of several dtypes, of which one is not trained."""
    values = [np.ones((2, 3), "float32"), np.full(2, 3, "float16"), np.arange(4, dtype="int32"), np.ones(2, "float32")]
    trained = [True, True, False, False]
    return [keras.Variable(x, dtype=str(x.dtype), trainable=t) for x, t in zip(values, trained)]


def test_values_are_those_of_each_variable():
    variables = keras_variables()
    read = recorded_read(variables)
    assert [x.dtype for x in read] == [tf.float32, tf.float16, tf.int32, tf.float32]
    for variable, value in zip(variables, read):
        np.testing.assert_array_equal(value, variable.numpy())
    assert private_api.read([]) == ([], {})


def test_trained_variables_are_watched_and_others_only_if_asked_for():
    one, half, _, fixed = variables = keras_variables()
    with tf.GradientTape(persistent=True) as tape:
        read = recorded_read(variables)
        y = tf.reduce_sum(read[0] ** 2) + tf.reduce_sum(read[3] ** 2)
    assert {id(v) for v in tape.watched_variables()} == {id(one.value), id(half.value)}
    np.testing.assert_array_equal(tape.gradient(y, one.value), 2 * one.numpy())
    assert tape.gradient(y, half.value) is None
    assert tape.gradient(y, fixed.value) is None
    with tf.GradientTape() as tape:
        tape.watch(fixed.value)
        y = tf.reduce_sum(recorded_read(variables)[3] ** 2)
    np.testing.assert_array_equal(tape.gradient(y, fixed.value), 2 * fixed.numpy())
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        y = tf.reduce_sum(recorded_read(variables)[0])
    assert tape.gradient(y, one.value) is None


def test_custom_gradients_see_what_is_read_without_a_tape_too():
    variables = [keras.Variable(np.ones(3, "float32")), keras.Variable(np.ones(3, "float32"))]
    for read in (recorded_read, lambda variables: [v.value.read_value() for v in variables]):

        @tf.custom_gradient
        def product(x, read=read):
            return x * read(variables)[0], lambda upstream: upstream  # which takes no gradients of variables

        with pytest.raises(TypeError, match="variables"):
            product(tf.ones(3))


def test_a_value_that_was_read_stays_when_rows_of_the_variable_are_updated():
    """TensorFlow writes rows into a variable in place, unless somebody may still read it."""
    table, other = keras.Variable(np.zeros((4, 2), "float32")), keras.Variable(np.zeros(3, "float32"))
    rows = tf.IndexedSlices(tf.ones((1, 2)), [0])
    for _ in range(3):
        before = table.numpy()
        value, _ = recorded_read([table, other])
        private_api.storage(table).scatter_add(rows)
        np.testing.assert_array_equal(value, before)
        assert not np.array_equal(table.numpy(), before)


def test_gradients_of_rows_stay_sparse():
    table, bias = keras.Variable(np.ones((9, 2), "float32")), keras.Variable(np.ones(2, "float32"))
    with tf.GradientTape() as tape:
        value, added = recorded_read([table, bias])
        y = tf.reduce_sum(tf.gather(value, [3, 3, 5]) + added)
    gradient, _ = tape.gradient(y, [table.value, bias.value])
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient.indices.numpy().tolist() == [3, 3, 5]


def segment():
    """A model, and the same as a segment."""
    model = keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(3, activation="tanh") for _ in range(3))])
    return model, tfgc.recompute(lambda x: model(x))


def test_second_derivatives_by_weights_are_those_of_plain_code():
    model, recomputed = segment()
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float32)
    weights = [v.value for v in model.trainable_variables]

    def second(call, persistent):
        with tf.GradientTape(persistent=persistent) as outer:
            with tf.GradientTape(persistent=persistent) as inner:
                y = tf.reduce_sum(call(x) ** 2)
            first = inner.gradient(y, weights)
            size = tf.add_n([tf.reduce_sum(g**2) for g in first])
        return outer.gradient(size, weights)

    for persistent in (False, True):
        for got, want in zip(second(recomputed, persistent), second(model, persistent)):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def records_of_a_step(variables, monkeypatch):
    """How often a compiled segment that adds up so many variables tells tapes of something, and its gradients."""
    added = [keras.Variable(np.full(2, i, "float32")) for i in range(variables)]
    recomputed = tfgc.recompute(lambda x: tf.add_n([x, *(v.value for v in added)]) ** 2)
    kinds, record = [], private_api.record.record_operation

    def noted(kind, *args, **kwargs):
        kinds.append(kind)
        return record(kind, *args, **kwargs)

    x, weights = tf.ones(2), [v.value for v in added]
    for _ in range(2):
        kinds.clear()
        with monkeypatch.context() as patch, tf.GradientTape() as tape:
            patch.setattr(private_api.record, "record_operation", noted)
            y = recomputed(x)
        gradients = tape.gradient(y, weights)
    want = np.full(2, 2 * (1 + sum(range(variables))))
    assert all(np.array_equal(gradient, want) for gradient in gradients)
    return kinds


def test_a_segment_with_many_variables_is_recorded_as_one_operation(monkeypatch):
    few, many = (records_of_a_step(variables, monkeypatch) for variables in (2, 20))
    assert few == many
    assert few.count("tfgc_replay") == 1


def test_a_tape_that_did_not_see_the_read_takes_the_values_for_constants():
    """As of an older loss whose gradients are part of a newer one, which watches the same weights."""
    model, recomputed = segment()
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float32)
    weights = [v.value for v in model.trainable_variables]

    def balanced(call):
        with tf.GradientTape() as older:
            loss = tf.reduce_mean(call(x) ** 2)
        with tf.GradientTape() as newer:
            total = tf.reduce_mean(call(2 * x) ** 2)
            size = tf.add_n([tf.reduce_sum(g**2) for g in older.gradient(loss, weights)])
            total += size
        with tf.GradientTape() as watching:
            watching.watch(weights)
            with tf.GradientTape() as inner:
                with watching.stop_recording():
                    loss = tf.reduce_mean(call(x) ** 2)
            size = tf.add_n([tf.reduce_sum(g**2) for g in inner.gradient(loss, weights)])
        return newer.gradient(total, weights), watching.gradient(size, weights)

    (got, nothing), (want, none) = balanced(recomputed), balanced(model)
    assert nothing == none == [None] * len(weights)
    for one, other in zip(got, want):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_tape_around_a_jacobian_knows_of_the_values():
    """It is made in a graph, which captures them."""
    model, recomputed = segment()
    x, weights = tf.ones((2, 3)), [v.value for v in model.trainable_variables]

    def second(call):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = call(x)
            size = tf.reduce_sum(inner.jacobian(y, x) ** 2)
        return outer.gradient(size, weights[::2])

    for one, other in zip(second(recomputed), second(model)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_two_passes_through_one_call_add_up_in_a_tape_around():
    model, recomputed = segment()
    x, weights = tf.ones((4, 3)), [v.value for v in model.trainable_variables]

    def second(call):
        with tf.GradientTape() as outer:
            with tf.GradientTape(persistent=True) as inner:
                one, other = tf.reduce_sum(call(x) ** 2), 0.0
                other = one**2
            passes = [inner.gradient(y, weights) for y in (one, other, one)]
            size = tf.add_n([tf.reduce_sum(g**3) for gradients in passes for g in gradients])
        return outer.gradient(size, weights)

    for one, other in zip(second(recomputed), second(model)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_gradient_that_flows_to_some_variables_alone_is_none_for_the_others():
    used, unused = keras.Variable(np.ones(3, "float32")), keras.Variable(np.ones(3, "float32"))

    def call(x):
        return x * used.value, x + unused.value

    for function in (call, tfgc.recompute(call)):
        with tf.GradientTape(persistent=True) as tape:
            one, other = function(tf.ones(3))
        assert tape.gradient(one, unused.value) is None
        assert tape.gradient(other, used.value) is None
        np.testing.assert_array_equal(tape.gradient(one, used.value), np.ones(3))


def test_forward_mode_follows_variables():
    model, recomputed = segment()
    x = tf.ones((4, 3))
    kernel = model.trainable_variables[0].value
    for call in (model, recomputed):
        with tf.autodiff.ForwardAccumulator(kernel, tf.ones_like(kernel)) as accumulator:
            y = call(x)
        found = accumulator.jvp(y)
        if call is model:
            want = found
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_variables_of_a_strategy_are_read_by_it():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = keras.Variable(np.arange(3, dtype="float32"))
    plain = keras.Variable(np.arange(2, dtype="float32"))
    assert not private_api.are_plain([private_api.storage(mirrored)])
    for value, variable in zip(recorded_read([plain, mirrored]), (plain, mirrored)):
        np.testing.assert_array_equal(value, variable.numpy())


def of_two_devices():
    """Whether variables of two devices are read together, and what is read."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    variables = []
    for device in ("CPU:0", "CPU:1"):
        with tf.device(device):
            variables.append(keras.Variable(np.arange(3, dtype="float32")))
    together = private_api.are_plain([private_api.storage(v) for v in variables])
    return together, [value.numpy().tolist() for value in recorded_read(variables)]


def test_variables_of_two_devices_are_read_one_by_one():
    assert alone(of_two_devices) == (False, [[0, 1, 2]] * 2)
