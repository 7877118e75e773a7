"""Rewritten steps as TensorFlow runs them: the same bits as plain ones, without a tolerance.

TensorFlow's graph optimizer is off here. With it on, it fuses operations of one of two equal runs (a product and the
bias behind it), which rounds differently.
"""

import keras
import models
import numpy as np
import pytest
import tensorflow as tf
from equality import mean_squares, states

from tfgc._rewrite.liveness import peak
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._run.emit import Built
from tfgc._step.trace import trace

pytestmark = pytest.mark.usefixtures("optimizer_off")

STEPS = 2


def step_of(build):
    """A model, and a function of one step of Adam that returns loss, added losses and gradients."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    model = build()
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(x, training=True))
            losses = [tf.cast(extra, tf.float32) for extra in model.losses]
            loss = tf.add_n([mean_squares(outputs, y), *losses])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply([tf.convert_to_tensor(g) for g in gradients if g is not None],
                        [v for g, v in zip(gradients, model.trainable_variables) if g is not None])  # fmt: skip
        return loss, losses, [g for g in gradients if g is not None]

    return model, optimizer, step


def cut_at_every(step, count, inside=False):
    """Cuts behind every so many of the forward operations; segments cut again, if that is asked for."""
    forward = [i for i in step.order if step.ops[i].call == 0 and step.makes[i]]
    ends = range(count - 1, len(forward) - 1, count)
    return [Cut(forward[i], inside=(Cut(forward[i - count // 2]),) if inside else ()) for i in ends]


def rewritten(step, x, y, count, inside=False, xla=False):
    """The step with everything cut, as a function; and its simulated peak as a share of the plain one."""
    found = trace(tf.function(step), x, y, small=1)
    made = ordered(recomputed(found.step, cut_at_every(found.step, count, inside)))
    assert any(op.segment for op in made.ops.values())
    build = Built(found, made, xla)

    def run(x, y):
        flat = build(tf.nest.flatten((x, y)))
        return tf.nest.pack_sequence_as(found.function.structured_outputs, flat, expand_composites=True)

    return tf.function(run, autograph=False, jit_compile=xla), peak(made) / peak(found.step)


def results(model, optimizer, run, x, y):
    shown = [[np.array(t) for t in tf.nest.flatten(run(x, y), expand_composites=True)] for _ in range(STEPS)]
    return [*shown, [np.array(v) for v in (*states(model), *optimizer.variables)]]


def bits(arrays):
    return [[(a.dtype, a.shape, a.tobytes()) for a in each] for each in arrays]


def data(build):
    x = models.inputs_of(build)
    keras.utils.set_random_seed(7)
    outputs = tf.nest.flatten(build()(x))
    y = [tf.constant(np.random.default_rng(0).normal(size=o.shape), "float32") for o in outputs]
    return x, y


NESTED = (models.dropout, models.batch_normalization, models.auxiliary_losses, models.attention)


@pytest.mark.parametrize(
    ("build", "inside"),
    [*((build, False) for build in (*models.STATEFUL, *models.CALLS)), *((build, True) for build in NESTED)],
    ids=lambda value: getattr(value, "__name__", "nested" if value else "flat"),
)
def test_a_rewritten_step_gives_the_bits_of_the_plain_one(build, inside):
    x, y = data(build)
    model, optimizer, step = step_of(build)
    expected = results(model, optimizer, tf.function(step), x, y)
    model, optimizer, step = step_of(build)
    run, _ = rewritten(step, x, y, 6 if inside else 4, inside)
    assert bits(results(model, optimizer, run, x, y)) == bits(expected)


@pytest.mark.parametrize("penalized", [False, True])
def test_a_bias_has_the_bits_of_the_plain_step_where_its_filter_is_frozen(penalized):
    """oneDNN sums it otherwise beside the gradient of the filter, whether anything reads that or not."""
    x = tf.random.normal((8, 16, 16, 8), seed=1)
    filters = [tf.random.normal((3, 3, 8, 8), seed=2 + i) for i in range(3)]
    biases = [tf.Variable(tf.zeros(8)) for _ in filters]

    def step(x, y):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                for filter, bias in zip(filters, biases):
                    x = tf.tanh(tf.nn.bias_add(tf.nn.conv2d(x, filter, 1, "SAME"), bias))
                loss = tf.reduce_mean((x - y) ** 2)
            if penalized:
                loss += tf.add_n([tf.reduce_sum(tf.exp(slope)) for slope in inner.gradient(loss, biases)])
        return tape.gradient(loss, biases)

    y = x + 1
    run, _ = rewritten(step, x, y, 2)
    for ours, plain in zip(run(x, y), tf.function(step)(x, y), strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_an_update_waits_for_the_gradients_that_read_its_variable():
    """TensorFlow updates a variable in a copy of it while its value may still be read."""
    first, second = (tf.Variable(tf.ones((4, 4))) for _ in range(2))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ first) @ second)
        for variable, gradient in zip((first, second), tape.gradient(loss, [first, second])):
            variable.assign_sub(gradient)

    made = trace(tf.function(step), tf.ones((2, 4))).step
    updates = [op for op in made.ops.values() if op.type == "AssignSubVariableOp"]
    awaited = [[made.ops[i].type for i in op.controls if made.ops[i].is_gradient] for op in updates]
    assert awaited == [[], ["MatMul"]]  # the gradient of what the second product reads


def test_xla_does_not_merge_copies_with_what_they_copy():
    layers = [keras.layers.Dense(64, "tanh") for _ in range(6)]

    def build():
        return keras.Sequential([keras.Input((64,)), *(type(one).from_config(one.get_config()) for one in layers)])

    x, y = tf.random.normal((512, 64), seed=1), [tf.random.normal((512, 64), seed=2)]
    model, optimizer, step = step_of(build)
    plain = tf.function(step, jit_compile=True)
    compiled = [plain.experimental_get_compiler_ir(x, y)(stage="optimized_hlo").count(" tanh(")]
    expected = results(model, optimizer, plain, x, y)
    model, optimizer, step = step_of(build)
    run, _ = rewritten(step, x, y, 8, xla=True)
    compiled.append(run.experimental_get_compiler_ir(x, y)(stage="optimized_hlo").count(" tanh("))
    for ours, plain in zip(results(model, optimizer, run, x, y), expected):
        for a, b in zip(ours, plain):
            # XLA fuses the two steps differently, and rounds as it fuses; bits are compared without it, above.
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert compiled[1] > compiled[0]
