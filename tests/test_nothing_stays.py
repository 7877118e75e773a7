"""Tensors of a step, of a proof or of a profile are freed with it: the allocator is where it was."""

import keras
import memory
import numpy as np
import tensorflow as tf

import tfgc

# Weights come from another pool, whose bytes do not count: they may move to a chunk of another size.
WIDTH, SAMPLES = 128, 1024
BUFFER = WIDTH * SAMPLES * 4


def residual():
    """Whose sums have gradients that are one tensor for both terms."""
    x = inputs = keras.Input((WIDTH,))
    for _ in range(6):
        x = keras.layers.Add()([x, keras.layers.Dense(WIDTH, "gelu")(x)])
    model = keras.Model(inputs, x)
    model.compile("sgd", "mse")
    return model, np.ones((SAMPLES, WIDTH), "float32")


def growth(run, times=4):
    """Bytes that are there after more runs, beyond those after the first."""
    run()
    before = memory.info("current")
    for _ in range(times):
        run()
    return memory.info("current") - before


def of_steps():
    model, x = residual()
    tfgc.enable(model, layers=keras.layers.Add)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        tape.gradient(loss, [v.value for v in model.trainable_variables])

    return growth(step)


def test_steps_that_run_op_by_op_keep_nothing():
    """`GradientTape.gradient` never frees what it returns twice: each step kept a gradient for each recomputed sum."""
    assert memory.alone(of_steps) < BUFFER


def of_a_function():
    a, b = tf.ones((SAMPLES, WIDTH)), tf.ones((SAMPLES, WIDTH))
    total = tfgc.recompute(lambda a, b: a + b)

    def step():
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            loss = tf.reduce_sum(total(tf.sin(a), tf.sin(b)))
        tape.gradient(loss, [a, b])

    return growth(step)


def test_a_recomputed_sum_keeps_nothing():
    assert memory.alone(of_a_function) < BUFFER


def of_verify():
    model, x = residual()
    plan = tfgc.plan(model, SAMPLES)
    return growth(lambda: tfgc.verify(model, plan, (x, x), modes="eager", steps=1))


def test_a_proof_keeps_nothing():
    """It kept twice the bytes of all sums, each time."""
    assert memory.alone(of_verify) < BUFFER
