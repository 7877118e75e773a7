"""Variables that a recomputed function reads, as tapes know them."""

import keras
import numpy as np
import tensorflow as tf

import tfgc


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
