"""Whether samples of a batch see one another, as operations and noise show it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from compatibility_table import ROWS
from equality import in_turn
from models import DividedByMask, of_length_one

from tfgc._costs import batch_coupling, independence
from tfgc._tracing.keras_graph import Program

B, F = 6, 4
L = keras.layers
RNG = np.random.default_rng(0)
W = RNG.normal(size=(F, F)).astype("float32")
EACH = RNG.normal(size=(B, F, F)).astype("float32")  # a matrix for each sample

SEPARATE = {
    "product": lambda x: x @ W,
    "product from the left": lambda x: tf.transpose(tf.matmul(W, x, transpose_b=True)),
    "mean of features": lambda x: tf.reduce_mean(x, -1, keepdims=True) * x,
    "softmax": tf.nn.softmax,
    "reshaped": lambda x: tf.reshape(tf.reduce_sum(tf.reshape(x, (B, 2, 2)), 2), (B, 2)),
    "parts of samples": lambda x: tf.reshape(tf.reduce_sum(tf.reshape(x, (B * 2, 2)), 1), (B, 2)),
    "first feature": lambda x: x[:, :1] - x[..., 0][:, None],
    "reversed features": lambda x: tf.reverse(x, [1]) + x[:, ::-1],
    "halves": lambda x: tf.concat(tf.split(x, 2, 1)[::-1], 1),
    "attention": lambda x: tf.einsum("bq,bk->bqk", x, x)[:, 0],
    "table": lambda x: tf.gather(W, tf.cast(x > 0, tf.int32)[:, 0]),
    "columns of a table": lambda x: tf.transpose(tf.gather(W, tf.cast(x > 0, tf.int32)[:, 0] * 0 + 1, axis=1)),
    "columns of a table from behind": lambda x: tf.transpose(
        tf.gather(W, tf.cast(x > 0, tf.int32)[:, 0] * 0 + 1, axis=-1), [-1, -2]
    ),
    "filled": lambda x: tf.concat([x, tf.fill((B, 1), 2.0), tf.broadcast_to(W[:1], (B, F))], 1),
    "dropout": lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, seed=(1, 2)),
    "identities": lambda x: tf.identity_n([W, x])[1] * tf.identity_n([W, x])[0][:1],
    "product with one matrix for all": lambda x: tf.matmul(x[:, None], EACH[:1])[:, 0],
    "ellipsis": lambda x: tf.einsum("...f,fg->...g", x, W) + tf.einsum("...f,...f->...f", x, x),
    "bias": lambda x: tf.nn.bias_add(x[..., None, None], W[0], data_format="NCHW")[..., 0, 0],
}
MIXED = {
    "mean": lambda x: x - tf.reduce_mean(x, 0),
    "sum of squares": lambda x: x / tf.norm(x),
    "product of samples": lambda x: tf.matmul(x, x, transpose_b=True),
    "softmax over samples": lambda x: tf.transpose(tf.nn.softmax(tf.transpose(x))),
    "groups of samples": lambda x: x - tf.reshape(tf.tile(tf.reduce_mean(tf.reshape(x, (3, 2, F)), 1), (1, 2)), (B, F)),
    "rows across samples": lambda x: tf.reshape(tf.reduce_sum(tf.reshape(tf.reshape(x, (B * F,)), (4, B)), 1), (2, 2)),
    "reversed samples": lambda x: tf.reverse(x, [0]),
    "reversed by strides": lambda x: x[::-1],
    "every second sample": lambda x: x[::2],
    "first sample": lambda x: x * x[0],
    "number of the sample": lambda x: x * tf.range(B, dtype=tf.float32)[:, None],
    "number of the sample beside it": lambda x: tf.concat([x, tf.range(B, dtype=tf.float32)[:, None]], 1),
    "rolled": lambda x: tf.roll(x, 1, 0),
    "sorted": lambda x: tf.sort(x, axis=0),
    "running sum": lambda x: tf.cumsum(x),
    "einsum over samples": lambda x: tf.einsum("bf,bg->fg", x, x),
    "product with a matrix for each": lambda x: tf.matmul(x[:, None], EACH)[:, 0],
    "einsum with a matrix for each": lambda x: tf.einsum("bf,bfg->bg", x, EACH),
    "ellipsis with a vector for each": lambda x: tf.einsum("...f,...f->...f", x, EACH[0, :1] + EACH[:, 0]),
    "samples behind another axis": lambda x: tf.einsum("...f,...f->...f", x, np.ones((B, B, F), "float32")),
    "diagonal": lambda x: tf.einsum("bb->b", tf.concat([x, x[:, :2]], 1)),
    "number of the sample, repeated": lambda x: x * tf.broadcast_to(tf.range(B, dtype=x.dtype)[:, None], (B, F)),
    "a bias for each": lambda x: tf.transpose(
        tf.nn.bias_add(tf.transpose(x)[..., None], EACH[:, 0, 0], data_format="NCHW")[..., 0]
    ),
    "sum over gathered columns": lambda x: (
        x * tf.reduce_sum(tf.gather(EACH[0], tf.cast(x[:, 0] > 0, tf.int32), axis=-1), 1)
    ),
    "ellipsis of no axis": lambda x: tf.einsum("...bf,bg->...fg", x, EACH[:, 0]),
    "of unknown rank": lambda x: tf.reshape(x, tf.compat.v1.placeholder("int32")) * x,
    "columns of a table of unknown rank": lambda x: tf.gather(
        tf.reshape(W, tf.compat.v1.placeholder("int32")), tf.cast(x > 0, tf.int32)[:, 0], axis=-1
    ),
    "transposed": tf.transpose,
    "scalar": tf.reduce_sum,
    "loop": lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * 2), (0, x))[1],
}


def coupled(function):
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder("float32", (B, F))
        made = function(x)
        return batch_coupling.couples(graph.get_operations(), [x], [made])


@pytest.mark.parametrize("name", SEPARATE)
def test_samples_that_do_not_meet_are_shown_to_be_separate(name):
    assert not coupled(SEPARATE[name])
    if name != "dropout":
        x = tf.constant(RNG.normal(size=(B, F)), "float32")
        other = tf.concat([x[:3], tf.ones((3, F))], 0)
        np.testing.assert_allclose(SEPARATE[name](x)[:3], SEPARATE[name](other)[:3])


@pytest.mark.parametrize("name", MIXED)
def test_samples_that_meet_or_whose_number_matters_are_seen(name):
    assert coupled(MIXED[name])


@pytest.mark.parametrize("shape", [(), (1, F), (2 * B, F)])
def test_what_has_no_row_for_each_sample_cannot_be_cut(shape):
    with tf.Graph().as_default() as graph:
        x, other = (tf.compat.v1.placeholder("float32", each) for each in ((B, F), shape))
        made = x * (other if shape != (2 * B, F) else other[:1])
        assert batch_coupling.couples(graph.get_operations(), [x, other], [made])


WORDS = {
    "BatchNormalization": "updates its variable",
    "SpectralNormalization": "updates its variable",
    "state of its own": "updates its variable",
    "nested sublayers": "updates its variable",
    "stateful GRU and LSTM": "cannot be traced for 6 samples",
    "tf.numpy_function": "may change something with each batch",
    "writes to a plain tf.Variable": "may change something with each batch",
}
DENSE = [row for row in ROWS if row.policy == "float32" and row.name not in ("SparseTensor", "RaggedTensor")]


def rows():
    """In the gate are all layers that mix samples, and each third of the others."""
    for i, row in enumerate(DENSE):
        yield pytest.param(row, id=row.name, marks=[] if row.name in WORDS or i % 3 == 0 else pytest.mark.slow)


@pytest.mark.gate
@pytest.mark.parametrize("row", rows())
def test_layers_that_mix_samples_are_named(row):
    program = Program(row.build())
    nodes, _ = independence.read(program, program.feed(tf.nest.map_structure(lambda t: t[:8], row.x)))
    found = [obstacle for obstacle in nodes.values() if obstacle is not None]
    words = WORDS.get(row.name)
    assert (words in found[0]) if words else not found


class Mixing(L.Layer):
    """Looks at other samples beyond a threshold only, in a loop."""

    def call(self, x):
        def body(i, y):
            largest = tf.reduce_max(tf.abs(y))
            return i + 1, tf.where(largest > 5.0, y / largest, y)

        return tf.while_loop(lambda i, _: i < 1, body, (0, x))[1]


class Summed(L.Layer):
    """Adds a loss that is a sum over the samples."""

    def call(self, x):
        self.add_loss(tf.reduce_sum(x))
        return x


class Rescaled(L.Layer):
    """Looks at other samples where one number is beyond what noise is."""

    def call(self, x):
        return tf.cond(tf.reduce_max(x) > 300.0, lambda: x / tf.reduce_max(x), lambda: x)


class Normed(L.Layer):
    """Has no direction to give for a sample of zeros."""

    def call(self, x):
        y = tf.matmul(tf.where(x > 0.0, x, 0.0), tf.ones((4, 3)) / 3.0)
        return y / tf.norm(y, axis=-1, keepdims=True)


SIZED = {
    "layer": lambda: BySize(),
    "activation": lambda: L.Dense(4, activation=lambda x: x / tf.cast(tf.shape(x)[0], x.dtype)),
}


class BySize(L.Layer):
    """Reads how many samples there are, of which operations that are traced show a constant."""

    def call(self, x):
        return x / keras.ops.cast(keras.ops.shape(x)[0], x.dtype)


@pytest.mark.parametrize("kind", SIZED)
def test_what_reads_the_size_of_its_batch_is_seen(kind):
    program = Program(keras.Sequential([keras.Input((4,)), SIZED[kind]()]))
    nodes, _ = independence.read(program, program.feed(tf.ones((8, 4))))
    assert list(nodes.values()) == ["mixes the samples of a batch"]


DRAWN = {
    "rows": lambda shape, seed: keras.random.normal(shape, seed=seed),
    "one row for all": lambda shape, seed: keras.random.normal((1, *shape[1:]), seed=seed),
    "truncated": lambda shape, seed: keras.random.truncated_normal(shape, seed=seed),
}


class Drawing(L.Layer):
    """Adds random numbers, and does something more."""

    def __init__(self, draw, then):
        super().__init__()
        self.draw, self.then, self.seed = draw, then, keras.random.SeedGenerator(3)

    def call(self, x):
        return self.then(x + self.draw(keras.ops.shape(x), self.seed))


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize(
    ("then", "words"),
    [(tf.identity, None), (lambda x: x / tf.cast(tf.shape(x)[0], x.dtype), "mixes the samples of a batch")]
    + [(of_length_one, "mixes the samples of a batch in its gradient")],
)
def test_what_else_a_layer_that_draws_does_is_seen(kind, then, words):
    program = Program(keras.Sequential([keras.Input((4,)), Drawing(DRAWN[kind], then)]))
    nodes, _ = independence.read(program, program.feed(tf.ones((8, 4))))
    assert list(nodes.values()) == [words]


def test_samples_meet_in_a_mask():
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(9, 4, mask_zero=True)(inputs)
    added = L.Add()([x, x])
    divided = DividedByMask(name="divided")([x + 1.0, x])
    outputs = L.AdditiveAttention(name="attention")([divided, added])
    program = Program(keras.Model(inputs, outputs))
    nodes, _ = independence.read(program, program.feed(tf.ones((8, 6), "int32")))
    assert {name for name, reason in nodes.items() if reason} == {"divided"}
    alone = {ref: tf.TensorSpec((8, 6, 4)) for ref in program.graph.nodes[program.graph.position["divided"]].inputs}
    assert independence.read(program, alone, ["divided"])[0] == {"divided": "mixes the samples of a batch"}


def test_a_sample_without_a_result_does_not_count_as_mixed():
    program = Program(keras.Sequential([keras.Input((4,)), Normed()]))
    nodes, _ = independence.read(program, program.feed(tf.ones((8, 4))))
    assert list(nodes.values()) == [None]


class LearnedStep(L.Layer):
    """Learned step size quantization: what flows to its weight is divided by the root of all numbers' count."""

    def build(self, shape):
        self.step = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        share = 1.0 / tf.sqrt(tf.cast(tf.size(x), x.dtype))
        step = tf.cast(self.step, x.dtype)
        return x / (step * share + tf.stop_gradient(step * (1.0 - share)))


@tf.custom_gradient
def scaled_by(x, kernel):
    """A product; the gradient of the kernel has length one."""

    def backward(upstream):
        flowing = tf.matmul(x, upstream, transpose_a=True)
        return tf.matmul(upstream, kernel, transpose_b=True), flowing / tf.norm(flowing)

    return x @ kernel, backward


class Clipped(L.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(4, 4))

    def call(self, x):
        return scaled_by(x, tf.cast(self.kernel, x.dtype))


@pytest.mark.parametrize(
    ("policy", "layer"), in_turn(["float32", "mixed_float16", "mixed_bfloat16"], [LearnedStep, Clipped])
)
def test_gradients_of_weights_that_slices_do_not_add_up_to_are_seen(layer, policy):
    program = Program(keras.Sequential([keras.Input((4,)), layer(dtype=policy)]))
    nodes, _ = independence.read(program, program.feed(tf.ones((8, 4))))
    assert list(nodes.values()) == ["has a gradient of a weight that is not a sum over the samples"]


class Attending(L.Layer):
    """A block of the user's own; its keys' bias has a gradient that is zero but for rounding."""

    def __init__(self, **options):
        super().__init__(**options)
        self.attention, self.norm = L.MultiHeadAttention(2, 8, dtype=self.dtype_policy), L.LayerNormalization()
        self.table = L.Embedding(8, 16)

    def call(self, x):
        x = x + self.table(tf.range(tf.shape(x)[1]))
        return self.norm(x + self.attention(x, x))


class OnSphere(L.Layer):
    """Gives rows of length one, whose squares have the same sum for all weights."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 16))

    def call(self, x):
        return tf.nn.l2_normalize(x @ tf.cast(self.kernel, x.dtype), -1)


@pytest.mark.parametrize(
    ("policy", "layer"), in_turn(["float32", "mixed_float16", "mixed_bfloat16", "float64"], [Attending, OnSphere])
)
def test_gradients_of_weights_that_are_sums_but_for_rounding(layer, policy):
    keras.config.set_dtype_policy(policy)
    program = Program(keras.Sequential([keras.Input((8, 16)), layer(dtype=policy)]))
    nodes, _ = independence.read(program, program.feed(tf.ones((8, 8, 16))))
    assert list(nodes.values()) == [None]


class Labelled(L.Layer):
    """Adds a loss that is a mean over the numbers that are not -100."""

    def call(self, x):
        counts = tf.cast(x != -100.0, x.dtype)
        self.add_loss(tf.reduce_sum(counts * x) / tf.reduce_sum(counts))
        return x


@pytest.mark.parametrize(
    ("layer", "words"),
    [(Rescaled, "mixes the samples of a batch in its gradient"), (Mixing, "mixes the samples of a batch")]
    + [(Labelled, "adds a loss that is not a mean over the samples")]
    + [(Summed, "adds a loss that is not a mean over the samples")],
)
def test_layers_whose_operations_do_not_show_it_run_on_noise(layer, words):
    model = keras.Sequential([keras.Input((4,)), layer(), L.Dense(1, kernel_initializer="zeros")])
    program = Program(model)
    nodes, made = independence.read(program, program.feed(tf.zeros((8, 4))))
    assert list(nodes.values()) == [words, None]
    assert made[program.outputs[0]].shape == (6, 1)
