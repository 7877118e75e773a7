"""`tfgc.recompute(fn, slices=8)`: the gradients of the whole batch, a slice at a time."""

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf

import tfgc

L = keras.layers
X = np.random.default_rng(0).normal(size=(10, 6, 6, 2)).astype("float32")


def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((6, 6, 2)), L.Conv2D(4, 3, activation="gelu"), L.LayerNormalization(), L.Flatten(), L.Dense(3)]
    )


def gradients(fn, variables, *arguments):
    """Of something that is made of the rows of all samples, by the arguments and the variables."""
    arguments = [tf.convert_to_tensor(a) for a in arguments]
    sources = [a for a in arguments if a.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        made = fn(*arguments)
        value = tf.add_n([tf.reduce_mean(tf.nn.softmax(y, 0) * y) for y in tf.nest.flatten(made)])
    return [made, *(g if g is None else tf.convert_to_tensor(g) for g in tape.gradient(value, [*sources, *variables]))]


def eager(step):
    return step


def open_batch(step):
    return tf.function(step, input_signature=[tf.TensorSpec([None, *X.shape[1:]])])


def compiled(step):
    return tf.function(step, jit_compile=True)


def same(found, wanted, tolerance=2e-6):
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(1e-9, np.abs(other).max()))


@pytest.mark.parametrize(
    ("way", "slices"),
    [(eager, 2), (eager, 4), (tf.function, 2), (tf.function, 16), (open_batch, 4), (compiled, 4)],
)
def test_gradients_are_those_of_the_whole_batch(way, slices):
    """Ten samples in 2 equal slices, in 4 that are not equal, and in no more than there are."""
    model = network()
    values = [v.value for v in model.trainable_variables]
    wanted = gradients(model, values, X)
    sliced = tfgc.recompute(model, slices=slices)
    same(way(lambda x: gradients(sliced, values, x))(X), wanted)


def test_a_graph_takes_batches_of_any_size():
    model = network()
    values = [v.value for v in model.trainable_variables]
    sliced = tfgc.recompute(model, slices=4)
    step = open_batch(lambda x: gradients(sliced, values, x))
    for samples in (1, 3, 4, 9):
        same(step(X[:samples]), gradients(model, values, X[:samples]))


def test_slices_run_one_after_the_other_forward_and_again_for_gradients():
    ran = []

    def note(x):
        ran.append(len(x))
        return x

    def fn(x, scale):
        y = tf.numpy_function(note, [x], x.dtype, stateful=False)
        return tf.ensure_shape(y, x.shape) * scale

    x, scale = tf.constant(X[:, 0, 0]), tf.constant([2.0, 3.0])
    sliced = tfgc.recompute(fn, slices=4)
    for way in (eager, tf.function):
        step = way(lambda x, scale: gradients(sliced, [], x, scale))
        step(x, scale)
        ran.clear()
        step(x, scale)
        assert ran == [2, 3, 2, 3] + [2, 3, 2, 3]


def test_what_has_no_batch_in_front_goes_whole_to_each_slice():
    """Weights that are arguments, numbers and variables; tokens of an embedding have a sparse gradient."""
    table = tf.Variable(tf.random.stateless_normal([7, 3], [0, 1]))

    def fn(tokens, weights, scale, *, shift):
        rows = tf.gather(table, tokens)
        return {"a": tf.tanh(tf.reduce_mean(rows, 1) @ weights) * scale + shift, "b": tf.reduce_sum(rows, [1, 2])}

    given = np.arange(20).reshape(10, 2) % 7, tf.random.stateless_normal([3, 3], [0, 2]), np.float32(2)
    plain = gradients(lambda *args: fn(*args, shift=table[0]), [table], *given)
    sliced = tfgc.recompute(fn, slices=3)
    same(gradients(lambda *args: sliced(*args, shift=table[0]), [table], *given), plain)
    same(gradients(lambda *args: sliced(np.asarray(args[0]), *args[1:], shift=table[0]), [table], *given), plain)
    specs = [tf.TensorSpec([None, 2], "int64"), tf.TensorSpec([3, 3]), tf.TensorSpec([])]
    of_any_size = tf.function(
        lambda *args: gradients(lambda *args: sliced(*args, shift=table[0]), [table], *args), input_signature=specs
    )
    same(of_any_size(*given), plain)
    few = given[0][:2], *given[1:]
    same(of_any_size(*few), gradients(lambda *args: fn(*args, shift=table[0]), [table], *few))
    with tf.GradientTape() as tape:
        made = tf.reduce_sum(sliced(*map(tf.convert_to_tensor, given), shift=0.0)["a"])
    assert isinstance(tape.gradient(made, table), tf.IndexedSlices)


def test_gradients_of_gradients():
    model = network()
    values = [v.value for v in model.trainable_variables]
    sliced = tfgc.recompute(model, slices=4)

    def penalty(fn):
        x = tf.constant(X)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(fn(x) ** 2)
            norm = tf.reduce_sum(tape.gradient(y, x) ** 2)
        return outer.gradient(norm, values, unconnected_gradients="zero")

    wanted = penalty(model)
    same(penalty(sliced), wanted, 1e-5)
    same(tf.function(lambda: penalty(sliced))(), wanted, 1e-5)


def test_in_mixed_precision():
    layer = L.Dense(8, dtype="mixed_bfloat16", activation="relu")
    x = X.reshape(10, -1)
    wanted = gradients(layer, [], x)
    same(gradients(tfgc.recompute(layer, slices=5), [], x), wanted, 0.05)


def test_a_plan_of_the_step_leaves_slices_as_they_are():
    """In `fit` of an enabled model and `tfgc.function` the slices are a part of the step that is planned."""
    model = network()
    values = [v.value for v in model.trainable_variables]
    sliced = tfgc.recompute(model, slices=5)
    wanted = gradients(model, values, X)
    same(tfgc.function(lambda x: gradients(sliced, values, x))(tf.constant(X)), wanted)


class Moved(L.Layer):
    """Rows that a little of all rows is added to."""

    def call(self, x):
        return x + 1e-5 * tf.reduce_mean(x, 0, keepdims=True)


class Grown(L.Layer):
    """What mixes samples is there once it has trained."""

    def build(self, _):
        self.scale = self.add_weight(shape=(), initializer="zeros")

    def call(self, x):
        return x + self.scale * tf.reduce_max(x, 0, keepdims=True)


@tf.custom_gradient
def coupled_backward(x):
    return tf.identity(x), lambda upstream: upstream - tf.reduce_mean(upstream, 0, keepdims=True)


def numbered(x):
    return x + tf.range(tf.shape(x)[0], dtype=x.dtype)[:, None]


NORMALIZATION, DROPOUT = L.BatchNormalization(name="bn"), L.Dropout(0.5)
DEPENDENT = {
    "moves by": Moved(),
    "result 0 in 5 slices differs": lambda x: tf.nn.softmax(x, 0),
    "the gradient of 'grown/variable:0' in slices differs": Grown(name="grown"),
    "the gradient of tensor 0 of its arguments in slices differs": coupled_backward,
    "in 5 slices differs from that of the whole batch by": lambda x: x / tf.cast(tf.shape(x)[0], x.dtype),
    "differs from that of the whole batch": numbered,
    "move by": lambda x: x + 1e-6 * tf.cumsum(x),
    "rows for 10 samples": lambda x: tf.boolean_mask(x, x[:, 0] > 0),
    "updates 'bn/moving_mean:0'": lambda x: NORMALIZATION(x, training=True),
    "seed_generator_state": lambda x: DROPOUT(x, training=True),
    "draws random numbers": lambda x: x + tf.random.normal(tf.shape(x)),
    "adds a loss": L.Dense(2, activity_regularizer="l2"),
    "without the batch in front": lambda x: tf.reduce_mean(x),
    "cannot be traced": lambda x: x * float(tf.reduce_sum(x).numpy()),
}


@pytest.mark.parametrize("way", [eager, tf.function])
@pytest.mark.parametrize("message", DEPENDENT)
def test_what_is_not_independent_across_the_batch_is_refused(message, way):
    sliced, x = tfgc.recompute(DEPENDENT[message], slices=5), tf.constant(X[:, 0].reshape(10, -1))
    for given in (tf.ones_like(x), x):
        with pytest.raises(tfgc.UnsupportedModelError, match=message.replace("moves", "move")):
            way(tf.autograph.experimental.do_not_convert(lambda x: gradients(sliced, [], x)))(given)


def test_what_is_checked_without_gradients_is_checked_again_with_them():
    sliced, x = tfgc.recompute(coupled_backward, slices=5), tf.constant(X[:, 0, 0])
    sliced(x)
    with pytest.raises(tfgc.UnsupportedModelError, match="the gradient of tensor 0"):
        gradients(sliced, [], x)


def test_a_graph_that_random_numbers_do_not_suit_is_checked_in_eager_code():
    def fn(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 1.0)]):
            return tf.identity(x) * 2

    sliced, x = tfgc.recompute(fn, slices=5), tf.constant(X[:, 0, 0] / 10)
    step = tf.function(lambda x: gradients(sliced, [], x))
    with pytest.raises(tfgc.UnsupportedModelError, match="call it once in eager code"):
        step(x)
    wanted = gradients(fn, [], x)
    same(gradients(sliced, [], x), wanted)
    same(step(x), wanted)


def test_what_cannot_be_cut_is_refused():
    for slices in (0, -1, 2.5, "8", True):
        with pytest.raises(tfgc.OptionError, match="slices"):
            tfgc.recompute(lambda x: x, slices=slices)
    sliced = tfgc.recompute(lambda x: x, slices=2)
    with pytest.raises(tfgc.UnsupportedModelError, match="no argument has a batch"):
        sliced(tf.constant(1.0))
    with pytest.raises(tfgc.UnsupportedModelError, match="sparse or ragged"):
        sliced(tf.ragged.constant([[1.0], [2.0, 3.0]]))
    with pytest.raises(tfgc.UnsupportedModelError, match="to be an argument"):
        tf.function(lambda i: tfgc.recompute(lambda x: x * tf.cast(i, x.dtype), slices=2)(tf.constant(X)))(
            tf.constant(3)
        )
    uneven = tfgc.recompute(lambda x: tf.reshape(x, [x.shape[0], -1]), slices=4)
    with pytest.raises(tfgc.UnsupportedModelError, match="divides the batch"):
        uneven(tf.constant(X))
    disagreeing = tfgc.recompute(lambda x, y: x + y, slices=2)
    with pytest.raises(tfgc.UnsupportedModelError, match="go whole to each slice"):
        disagreeing(tf.ones([4, 3]), tf.ones([3, 3]))


def wide(x):
    for _ in range(4):
        x = tf.nn.conv2d(x, tf.ones([3, 3, x.shape[-1], 16]) / 100, 1, "SAME")
        x = tf.nn.gelu(x)
    return tf.reduce_mean(x, [1, 2])


def peaks(in_graph):
    x, found = tf.random.stateless_normal([32, 32, 32, 16], [0, 1]), []
    for fn in (wide, tfgc.recompute(wide, slices=8)):
        step = tf.function(lambda x, fn=fn: gradients(fn, [], x)) if in_graph else lambda x, fn=fn: gradients(fn, [], x)
        found.append(memory.peak(step, x))
    return found


@pytest.mark.parametrize("in_graph", [False, True])
def test_one_slice_is_in_memory_at_a_time(in_graph):
    """Of the gradient of x there is all, next to the inside of one slice."""
    plain, sliced = memory.alone(peaks, in_graph)
    assert sliced < plain / 4
