"""Products that XLA for GPUs computes in parts: how many, what they take, and checkpoints that are made of them."""

import keras
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, noise, train

import tfgc
from tfgc._costs import xla_products

L = keras.layers


def product(left, right, dtype="float32", **flags):
    with tf.Graph().as_default():
        return tf.matmul(*(tf.compat.v1.placeholder(dtype, shape) for shape in (left, right)), **flags).op


# As XLA's compiler for an H100 has them in a GPT of 2,048 tokens, 256 units and 5,000 words.
@pytest.mark.parametrize(
    ("left", "right", "flags", "parts", "besides"),
    [
        ([2048, 1024], [1024, 256], {}, 4, 3 * 2048 * 256 * 4),
        # 5,008 numbers are four parts of whole multiples of 16 bytes.
        ([2048, 5000], [5000, 256], {}, 4, 3 * 2048 * 256 * 4 + (2048 + 256) * 5008 * 4),
        ([2048, 256], [256, 1024], {}, 1, 0),
        ([2048, 256], [5000, 256], {"transpose_b": True}, 1, 0),
        ([2048, 5000], [2048, 256], {"transpose_a": True}, 1, 0),
        ([32, 256, 64], [32, 64, 256], {}, 1, 0),
    ],
)
def test_how_many_parts_a_product_has(left, right, flags, parts, besides):
    op = product(left, right, **flags)
    assert xla_products.parts(op) == parts
    assert xla_products.while_running([op]) == ({op: besides} if besides else {})


def test_an_einsum_is_split_like_a_product():
    with tf.Graph().as_default():
        x, w = (tf.compat.v1.placeholder("float32", shape) for shape in ([8, 256, 1024], [1024, 256]))
        assert xla_products.parts(tf.einsum("abc,cd->abd", x, w).op) == 4


def test_open_sizes_and_other_operations_have_one_part():
    assert xla_products.parts(product([None, 1024], [1024, 256])) == 1
    with tf.Graph().as_default():
        assert xla_products.parts(tf.nn.relu(tf.compat.v1.placeholder("float32", [4])).op) == 1


def deep():
    """The second product sums over so many numbers for so few that it is split, the others are not."""
    x = inputs = keras.Input((8,))
    x = L.Add()([x, L.Dense(8, name="summed")(L.Dense(4096, "tanh", name="wide")(x))])
    for i in range(3):
        x = L.Dense(8, "tanh", name=f"small_{i}")(x)
    return keras.Model(inputs, L.Dense(3)(x))


def enabled():
    model = fresh(deep)
    return tfgc.enable(model, tfgc.plan(model, strategy="manual", keep=["add", "small_1"]))


def test_training_behind_such_a_checkpoint_under_xla():
    x, y = noise(64, 8), [noise(64, 3)] * 2
    plain = train(fresh(deep), x, y, graph=True, jit_compile=True)
    assert_equal(plain, train(enabled(), x, y, graph=True, jit_compile=True), exact=False)


def test_gradients_of_gradients_pass_the_barrier():
    model, plain, x = enabled(), fresh(deep), tf.constant(noise(64, 8))

    def of(model):
        @tf.function(jit_compile=True)
        def penalty(x):
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    loss = tf.reduce_sum(model(x, training=True) ** 2)
                flows = inner.gradient(loss, x)
                total = loss + tf.reduce_sum(flows**2)
            return flows, outer.gradient(total, model.trainable_variables)

        return penalty(x)

    (flows, found), (expected_flows, expected) = of(model), of(plain)
    for one, other in zip([flows, *found], [expected_flows, *expected]):
        assert tf.linalg.norm(one - other) <= 1e-5 * tf.linalg.norm(other)


def attention(rate):
    x = inputs = keras.Input((32, 16))
    return keras.Model(inputs, L.Dense(4)(L.MultiHeadAttention(2, 8, dropout=rate)(x, x)))


def test_the_mask_of_a_dropout_behind_a_softmax_counts_one_byte_a_number():
    """XLA stores it in place of the random numbers that it is drawn from."""
    kept = [tfgc.estimate(attention(rate), 8, mode="xla", optimizer="sgd").peak_bytes for rate in (0.0, 0.5)]
    # Besides the mask the result is kept: the gradient of the values wants it.
    assert kept[1] - kept[0] == pytest.approx(8 * 2 * 32 * 32 * (1 + 4), rel=0.05)


class SafeRoot(L.Layer):
    """Chooses twice by one mask, so that no gradient is infinite."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        positive = x > 0.0
        return tf.where(positive, self.scale * tf.sqrt(tf.where(positive, x, 1.0)), 0.0)


class DroppedOften(keras.Model):
    def __init__(self, drops=12):
        super().__init__(name="dropped")
        self.parts = [(L.Dense(8), L.Dropout(0.1), L.Activation("silu")) for _ in range(drops)]

    def call(self, x):
        for dense, drop, activate in self.parts:
            x = drop(x + activate(drop(dense(x))))
        return x


def test_masks_that_are_made_of_one_another_can_be_planned():
    model = keras.Sequential([keras.Input((8,)), L.Dense(8), SafeRoot(), L.Dense(2)])
    assert tfgc.plan(model, 4, strategy="optimal", mode="xla").segments
    model = DroppedOften()
    model(noise(4, 8))
    assert tfgc.estimate(model, example=noise(4, 8), mode="xla").peak_bytes > 0
