"""The table of what works: layer kinds and the like, in every execution mode.

`test_compatibility.py` proves each cell, `scripts/matrix.py` prints the page of it. A row is a
small model with the layer in the middle of recomputed segments, its data, and how cells differ from "works":
`plain` where Keras itself fails, with words of the message.
"""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf
from equality import noise
from models import Counter

L = keras.layers
MODES = {
    "eager": "your own loop, with TensorFlow's graph optimizer off",
    "compiled": "your own loop, eager calls",
    "graph": "your own loop in `tf.function`",
    "XLA": "your own loop in `tf.function(jit_compile=True)`",
    "fit": "`model.fit`",
    "fit, eager": "`compile(run_eagerly=True)`",
    "fit, XLA": "`compile(jit_compile=True)`",
    "fit, 4 steps": "`compile(steps_per_execution=4)`",
}
BATCH = 8


@dataclasses.dataclass(frozen=True)
class Row:
    """One row: what it is, a function that builds the model, and the inputs of three batches of 8.

    `plain` maps modes to words of the message.
    """

    group: str
    name: str
    build: object
    x: object
    plain: dict = dataclasses.field(default_factory=dict)
    policy: str = "float32"

    def cell(self, mode):
        """("works", "") or ("plain", words)."""
        return ("plain", self.plain[mode]) if mode in self.plain else ("works", "")


def between(*layers, shape, first=None, last=None):
    """Layers in the middle of a chain, with weights before and after."""

    def build():
        made = [layer() for layer in layers]
        head = [] if first is None else [first()]
        return keras.Sequential([keras.Input(shape), *head, *made, *([] if last is None else [last()]), *tail(shape)])

    return build


def tail(shape):
    flat = [L.GlobalAveragePooling1D()] if len(shape) == 2 else []
    flat = flat or ([L.Flatten()] if len(shape) > 2 else [])
    return [*flat, L.Dense(6, activation="tanh"), L.Dense(3)]


def samples(*shape, seed=1):
    return noise(3 * BATCH, *shape, seed=seed)


SERIES, IMAGE, VOLUME, FLAT = (8, 4), (8, 8, 3), (4, 6, 6, 2), (8,)
TOKENS = tf.constant(np.random.default_rng(3).integers(0, 4, (3 * BATCH, 6)), "int32")


def series(name, *layers, group="Convolutions", **more):
    build = between(*layers, shape=SERIES, first=lambda: L.Conv1D(4, 3, padding="same"))
    return Row(group, name, build, samples(*SERIES), **more)


def image(name, *layers, group="Convolutions", **more):
    def first():
        return L.Conv2D(4, 3, padding="same", activation="relu")

    return Row(group, name, between(*layers, shape=IMAGE, first=first), samples(*IMAGE), **more)


def volume(name, *layers, group="Convolutions", **more):
    build = between(*layers, shape=VOLUME, first=lambda: L.Conv3D(3, 3, padding="same"))
    return Row(group, name, build, samples(*VOLUME), **more)


def flat(name, *layers, group="Normalization", **more):
    return Row(group, name, between(*layers, shape=FLAT, first=lambda: L.Dense(8)), samples(*FLAT), **more)


class Noisy(L.Layer):
    """Draws from Keras's global generator, which is no variable of the model."""

    def call(self, x):
        return x * (1 + 0.1 * keras.random.normal((8,), dtype=self.compute_dtype))


class Penalised(L.Layer):
    """Adds a loss in `call`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(8)

    def call(self, x):
        y = self.dense(x)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(y)))
        return y


class Flagged(L.Layer):
    """Takes what Keras hands down, and more keywords."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dense = L.Dense(8)

    def call(self, x, training=None, mask=None, **kwargs):
        y = self.dense(x) * kwargs.get("scale", 1.0)
        if mask is not None:
            y = y * keras.ops.cast(mask, y.dtype)[..., None]
        return y + 1.0 if training else y


class Nested(L.Layer):
    """Sublayers in a list and in a dictionary, with state."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [L.Dense(8), L.BatchNormalization(momentum=0.5)]
        self.more = {"drop": L.Dropout(0.3), "out": L.Dense(8, activation="tanh")}

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training) if isinstance(block, L.BatchNormalization) else block(x)
        return self.more["out"](self.more["drop"](x, training=training))


class Structured(L.Layer):
    """Dictionaries in, a dictionary with a tuple out."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.left, self.right = L.Dense(8), L.Dense(8)

    def build(self, shape):
        self.left.build(shape["a"])
        self.right.build(shape["b"])

    def call(self, inputs):
        a, b = self.left(inputs["a"]), self.right(inputs["b"])
        return {"sum": a + b, "both": (a * b, keras.ops.tanh(a))}


def structured():
    inputs = keras.Input(FLAT)
    a, b = L.Dense(8)(inputs), L.Dense(8)(inputs)
    made = Structured()({"a": a, "b": b})
    x = L.Concatenate()([made["sum"], *made["both"]])
    return keras.Model(inputs, L.Dense(3)(L.Dense(6)(x)))


def keywords():
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(4, 8, mask_zero=True)(inputs)
    x = Flagged()(x, scale=0.5)
    return keras.Model(inputs, L.Dense(3)(L.LSTM(6)(Flagged()(x))))


def on_tokens(*layers):
    def build():
        inputs = keras.Input((6,), dtype="int32")
        x = L.Embedding(4, 8, mask_zero=True)(inputs)
        for layer in layers:
            x = layer()(x)
        return keras.Model(inputs, L.Dense(3)(L.Dense(6, activation="tanh")(x)))

    return build


def stateful():
    inputs = keras.Input(batch_shape=(BATCH, *SERIES))
    x = L.GRU(6, stateful=True, return_sequences=True)(inputs)
    return keras.Model(inputs, L.Dense(3)(L.LSTM(6, stateful=True)(x)))


def attention(layer, **options):
    def build():
        inputs = keras.Input((6,), dtype="int32")
        x = L.Embedding(4, 8, mask_zero=True)(inputs)
        x = L.LayerNormalization()(layer()(x, x, **options))
        return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling1D()(L.Dense(6, activation="gelu")(x))))

    return build


def attention_with_mask():
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(4, 8)(inputs)
    mask = keras.ops.not_equal(inputs, 0)[:, None, :]
    y = L.MultiHeadAttention(2, 4)(x, x, attention_mask=mask)
    y, scores = L.MultiHeadAttention(2, 4)(y, x, attention_mask=mask, return_attention_scores=True)
    side = L.Flatten()(keras.ops.mean(scores, axis=1))
    return keras.Model(inputs, L.Dense(3)(L.Concatenate()([L.Flatten()(L.Dense(6)(y)), side])))


def scores():
    inputs = keras.Input(SERIES)
    x = L.Dense(8)(inputs)
    y = L.Attention(use_scale=True)([x, x])
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling1D()(L.AdditiveAttention()([y, x]))))


def normalized():
    adapted = L.Normalization()
    adapted.adapt(np.random.default_rng(0).normal(2.0, 3.0, (64, 8)))
    layers = [L.Rescaling(0.5, offset=1.0), adapted, L.Dense(8, activation="relu"), L.Dense(6), L.Dense(3)]
    return keras.Sequential([keras.Input(FLAT), *layers])


def time_distributed():
    inputs = keras.Input((4, 8, 8, 2))
    x = L.TimeDistributed(L.Conv2D(3, 3, activation="relu"))(inputs)
    x = L.TimeDistributed(L.Flatten())(x)
    return keras.Model(inputs, L.Dense(3)(L.GRU(5)(L.TimeDistributed(L.Dense(6))(x))))


def several():
    a, b = keras.Input(FLAT, name="a"), keras.Input((4,), name="b")
    x = L.Dropout(0.3)(L.Dense(8)(L.Concatenate()([L.Dense(6)(a), b])))
    return keras.Model({"a": a, "b": b}, {"out": L.Dense(3)(x), "side": L.Dense(2)(L.Dense(6)(x))})


def shared():
    inputs = keras.Input(FLAT)
    layer = L.Dense(8, activation="tanh")
    return keras.Model(inputs, L.Dense(3)(layer(L.Dropout(0.3)(layer(inputs)))))


def frozen():
    first, second = L.Dense(8), L.BatchNormalization()
    first.trainable = second.trainable = False
    return keras.Sequential([keras.Input(FLAT), L.Dense(8), first, second, L.Dropout(0.3), L.Dense(6), L.Dense(3)])


def precise():
    """Without an activity regularizer, which Keras adds to the loss in float32 alone."""
    layers = [
        L.Conv2D(4, 3, activation="relu"),
        L.BatchNormalization(momentum=0.5),
        L.Dropout(0.3),
        L.Flatten(),
        L.Dense(8, activation="tanh"),
        L.Dense(3),
    ]
    return keras.Sequential([keras.Input(IMAGE), *layers])


def sparse():
    inputs = keras.Input(FLAT, sparse=True)
    return keras.Model(inputs, L.Dense(3)(L.Dense(6, activation="tanh")(L.Dense(8)(inputs))))


def sparse_samples():
    x = samples(*FLAT)
    return tf.sparse.from_dense(tf.where(x > 0, x, 0.0))


def ragged():
    inputs = keras.Input((None,), dtype="int32", ragged=True)
    x = L.Lambda(lambda t: tf.reduce_mean(t, axis=1), output_shape=(4,))(L.Embedding(9, 4)(inputs))
    return keras.Model(inputs, L.Dense(3)(L.Dropout(0.2)(L.Dense(6, activation="tanh")(x))))


def ragged_samples():
    return tf.RaggedTensor.from_row_lengths(tf.range(3 * BATCH * 2) % 9, [1, 2, 3] * BATCH)


NO_XLA_IN_FIT = {"fit, XLA": "Model doesn't support `jit_compile=True`"}
NO_XLA = {"XLA": "tf2xla conversion failed", **NO_XLA_IN_FIT}
NO_XLA_AT_ALL = dict.fromkeys(["XLA", "fit, XLA"], "tf2xla conversion failed")


class Python(L.Layer):
    """Leaves TensorFlow for a moment."""

    def call(self, x):
        y = tf.numpy_function(lambda x: x * np.float32(2.0), [x], x.dtype)
        return tf.ensure_shape(y, x.shape) + x


class Remembering(L.Layer):
    """Writes to a variable that Keras does not know."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.last = tf.Variable(tf.zeros(8), trainable=False)

    def call(self, x):
        self.last.assign(tf.reduce_mean(x, axis=0))
        return x + tf.stop_gradient(self.last)


drop = functools.partial(image, group="Dropout and noise")
norm = functools.partial(image, group="Normalization")
pre = functools.partial(image, group="Random preprocessing")
ROWS = [
    series("Conv1D", lambda: L.Conv1D(6, 3, activation="relu")),
    image("Conv2D, dilated", lambda: L.Conv2D(6, 3, dilation_rate=2, activation="relu")),
    volume("Conv3D", lambda: L.Conv3D(4, 2, activation="relu")),
    series("Conv1D, groups", lambda: L.Conv1D(6, 3, groups=2, activation="relu")),
    image("Conv2D, groups", lambda: L.Conv2D(6, 3, groups=2, activation="relu")),
    volume("Conv3D, groups", lambda: L.Conv3D(6, 2, groups=3, activation="relu")),
    volume("Conv3D, channels_first", lambda: L.Conv3D(4, 2, data_format="channels_first", activation="relu")),
    series("Conv1DTranspose", lambda: L.Conv1DTranspose(6, 3, strides=2, activation="relu")),
    image("Conv2DTranspose", lambda: L.Conv2DTranspose(6, 3, strides=2, activation="relu")),
    volume("Conv3DTranspose", lambda: L.Conv3DTranspose(3, 2, activation="relu")),
    series("SeparableConv1D", lambda: L.SeparableConv1D(6, 3, activation="relu")),
    image("SeparableConv2D", lambda: L.SeparableConv2D(6, 3, activation="relu")),
    image("DepthwiseConv2D", lambda: L.DepthwiseConv2D(3, depth_multiplier=2, activation="relu")),
    image("pooling and resizing", lambda: L.MaxPooling2D(), lambda: L.UpSampling2D(), lambda: L.AveragePooling2D(2)),
    norm("BatchNormalization", lambda: L.BatchNormalization(momentum=0.5), lambda: L.ReLU()),
    norm("LayerNormalization", lambda: L.LayerNormalization(), lambda: L.ReLU()),
    norm("GroupNormalization", lambda: L.GroupNormalization(2), lambda: L.ReLU()),
    norm("UnitNormalization", lambda: L.UnitNormalization(), lambda: L.ReLU()),
    norm("SpectralNormalization", lambda: L.SpectralNormalization(L.Conv2D(4, 3)), lambda: L.ReLU()),
    Row("Normalization", "Rescaling, adapted Normalization", normalized, samples(*FLAT)),
    drop("Dropout", lambda: L.Dropout(0.4), lambda: L.Conv2D(4, 3), lambda: L.Dropout(0.2)),
    series("SpatialDropout1D", lambda: L.SpatialDropout1D(0.4), group="Dropout and noise"),
    drop("SpatialDropout2D", lambda: L.SpatialDropout2D(0.4)),
    volume("SpatialDropout3D", lambda: L.SpatialDropout3D(0.4), group="Dropout and noise"),
    drop("AlphaDropout", lambda: L.AlphaDropout(0.3)),
    drop("GaussianDropout", lambda: L.GaussianDropout(0.3)),
    drop("GaussianNoise", lambda: L.GaussianNoise(0.3)),
    pre("RandomFlip", lambda: L.RandomFlip(), lambda: L.Conv2D(4, 3)),
    pre("RandomTranslation", lambda: L.RandomTranslation(0.2, 0.2), lambda: L.Conv2D(4, 3), plain=NO_XLA),
    pre(
        "RandomRotation, RandomZoom",
        lambda: L.RandomRotation(0.1),
        lambda: L.RandomZoom(0.2),
        lambda: L.Conv2D(4, 3),
        plain=NO_XLA,
    ),
    pre("RandomContrast, RandomBrightness", lambda: L.RandomContrast(0.3), lambda: L.RandomBrightness(0.2)),
    pre("RandomCrop", lambda: L.RandomCrop(6, 6), lambda: L.Conv2D(4, 3), plain=NO_XLA_IN_FIT),
    Row(
        "Sequences",
        "Embedding(mask_zero), LSTM",
        on_tokens(lambda: L.LSTM(6, return_sequences=True), lambda: L.LSTM(6)),
        TOKENS,
    ),
    Row(
        "Sequences",
        "GRU, SimpleRNN",
        on_tokens(lambda: L.GRU(6, return_sequences=True), lambda: L.SimpleRNN(6)),
        TOKENS,
    ),
    Row("Sequences", "Bidirectional", on_tokens(lambda: L.Bidirectional(L.LSTM(4)), lambda: L.Dropout(0.2)), TOKENS),
    Row("Sequences", "stateful GRU and LSTM", stateful, samples(*SERIES)),
    Row("Sequences", "TimeDistributed", time_distributed, samples(4, 8, 8, 2)),
    Row(
        "Attention",
        "MultiHeadAttention, causal",
        attention(lambda: L.MultiHeadAttention(2, 4, dropout=0.2), use_causal_mask=True),
        TOKENS,
    ),
    Row("Attention", "MultiHeadAttention, mask and scores", attention_with_mask, TOKENS),
    Row("Attention", "GroupedQueryAttention", attention(lambda: L.GroupQueryAttention(4, 4, 2)), TOKENS),
    Row("Attention", "Attention, AdditiveAttention", scores, samples(*SERIES)),
    flat("Lambda", lambda: L.Lambda(lambda x: keras.ops.sin(x) * 2.0), group="Custom layers"),
    flat("state of its own", Counter, group="Custom layers"),
    flat("add_loss", Penalised, group="Custom layers"),
    Row("Custom layers", "call(training, mask, **kwargs)", keywords, TOKENS),
    flat("nested sublayers", Nested, group="Custom layers"),
    Row("Custom layers", "structured inputs and outputs", structured, samples(*FLAT)),
    flat("unseeded keras.random", Noisy, lambda: L.Dense(8), Noisy, group="Custom layers"),
    flat("tf.numpy_function", Python, group="Custom layers", plain=NO_XLA_AT_ALL),
    flat("writes to a plain tf.Variable", Remembering, group="Custom layers"),
    Row("Models", "several inputs, outputs and losses", several, {"a": samples(*FLAT), "b": samples(4, seed=5)}),
    Row("Models", "a shared layer", shared, samples(*FLAT)),
    Row("Models", "frozen layers", frozen, samples(*FLAT)),
    *(
        Row("Precision", policy, precise, samples(*IMAGE), policy=policy)
        for policy in ("mixed_float16", "mixed_bfloat16", "float64")
    ),
    Row("Inputs", "SparseTensor", sparse, sparse_samples(), plain=NO_XLA_AT_ALL),
    Row("Inputs", "RaggedTensor", ragged, ragged_samples()),
]
