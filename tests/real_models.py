"""Seven models of the shapes that people train, small: what they do in `fit`, and how tfgc is switched on in them.

Heads are written as most code writes them, with probabilities as outputs, and are as sure of themselves as after long
training: the crossentropy of such probabilities, which are clipped, is not that of the logits behind them, which Keras
looks for and takes. Optimizers that divide by a gradient's size have an epsilon that is large beside rounding, because
of weights whose true gradient is zero (key biases, biases before a normalization).
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import tfgc

L = keras.layers
BATCH, STEPS = 4, 3
SAMPLES = BATCH * STEPS


@dataclasses.dataclass(frozen=True)
class Model:
    """One row.

    Attributes:
        build: Makes the model that `fit` is called on.
        compile: Gives arguments of `compile`; anew for each model.
        data: Gives arguments of `fit` for three batches.
        enable: Switches tfgc on, as a user of such a model would.
        policy: Keras's dtype policy.
        fast, gate: Modes that are gate tests; the others are slow.
    """

    build: Callable
    compile: Callable
    data: Callable
    enable: Callable
    policy: str = "float32"
    fast: tuple = ("fit",)
    gate: tuple = ()


def by_uniform(segments, *names):
    """Enable parts of a model, or the model itself, in segments of equal length."""

    def enable(model):
        for part in [getattr(model, name) for name in names] or [model]:
            tfgc.enable(part, tfgc.plan(part, strategy="uniform", segments=segments))

    return enable


def draws(seed=0):
    return np.random.default_rng(seed)


def images(size, channels=3, seed=1, samples=SAMPLES):
    return draws(seed).standard_normal((samples, size, size, channels)).astype("float32")


def classes(n, *shape, seed=2):
    return draws(seed).integers(0, n, (SAMPLES, *shape))


def padded(n, length, seed=3):
    """Tokens from 1 to n - 1 and zeros behind them, in every row another number of zeros."""
    tokens = draws(seed).integers(1, n, (SAMPLES, length))
    lengths = draws(seed + 1).integers(2, length + 1, (SAMPLES, 1))
    return np.where(np.arange(length) < lengths, tokens, 0)


def sure(size=20.0):
    """An initializer that makes logits of some tens, of features of size 20 / `size`."""
    return keras.initializers.VarianceScaling(size**2, seed=11)


def conv_block(x, width, dropout=0.0):
    x = L.Conv2D(width, 3, padding="same", use_bias=False)(x)
    x = L.ReLU()(L.BatchNormalization(momentum=0.5)(x))
    return L.Dropout(dropout)(x) if dropout else x


# U-Net: a class for each pixel, and deep supervision in the middle.


def unet():
    x = inputs = keras.Input((16, 16, 3))
    x = skip = conv_block(x, 8)
    x = conv_block(L.MaxPooling2D()(x), 12, dropout=0.3)
    edges = L.Conv2D(1, 1, activation="sigmoid", kernel_initializer=sure(), name="edges")(x)
    x = L.Conv2DTranspose(8, 2, strides=2)(x)
    x = conv_block(L.Concatenate()([x, skip]), 8)
    classes = L.Conv2D(3, 1, activation="softmax", kernel_initializer=sure(), name="classes")(x)
    return keras.Model(inputs, {"classes": classes, "edges": edges})


def unet_settings():
    schedule = keras.optimizers.schedules.CosineDecay(0.0, 8, warmup_target=0.05, warmup_steps=2)
    return {
        "optimizer": keras.optimizers.SGD(schedule, momentum=0.9, clipnorm=1.0, use_ema=True, ema_momentum=0.5),
        "loss": {"classes": "sparse_categorical_crossentropy", "edges": "binary_crossentropy"},
        "loss_weights": {"classes": 1.0, "edges": 0.5},
        "metrics": {"classes": ["accuracy"], "edges": ["mae"]},
    }


def unet_data():
    y = classes(3, 16, 16)
    return {
        "x": images(16),
        "y": {"classes": y, "edges": (y[:, ::2, ::2] == 0).astype("float32")[..., None]},
        "sample_weight": {
            "classes": draws(4).uniform(size=(SAMPLES, 16, 16)),
            "edges": draws(5).uniform(size=(SAMPLES, 8, 8)),
        },
        "callbacks": [keras.callbacks.SwapEMAWeights()],
    }


# ViT: all of its blocks in one layer.


class EncoderBlock(L.Layer):
    """Attention and an MLP, each left out for some samples by stochastic depth."""

    def __init__(self, width, heads, rate=0.2, **kwargs):
        super().__init__(**kwargs)
        self.norms = [L.LayerNormalization(epsilon=1e-6), L.LayerNormalization(epsilon=1e-6)]
        self.attention = L.MultiHeadAttention(heads, width // heads, dropout=0.1, use_bias=False)
        self.up, self.down = L.Dense(2 * width, activation="gelu"), L.Dense(width)
        self.drop = L.Dropout(0.1)
        self.rate = rate
        self.seeds = keras.random.SeedGenerator(17)

    def call(self, x, training=None):
        y = self.norms[0](x)
        x = x + self.some(self.attention(y, y, training=training), training)
        y = self.drop(self.down(self.up(self.norms[1](x))), training=training)
        return x + self.some(y, training)

    def some(self, x, training):
        if not training:
            return x
        stay = keras.random.uniform((ops.shape(x)[0], 1, 1), dtype="float32", seed=self.seeds) >= self.rate
        return x * ops.cast(stay, x.dtype) / (1.0 - self.rate)


class Encoder(L.Layer):
    """Places and blocks, as in many a published ViT: to Keras this is one node."""

    def __init__(self, width, depth, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [EncoderBlock(width, 2, name=f"block_{i}") for i in range(depth)]
        self.norm = L.LayerNormalization(epsilon=1e-6)

    def build(self, shape):
        self.places = self.add_weight(shape=(1, *shape[1:]), initializer="random_normal", name="places")

    def call(self, x, training=None):
        x = x + ops.cast(self.places, x.dtype)
        for block in self.blocks:
            x = block(x, training=training)
        return self.norm(x)


def vit():
    inputs = keras.Input((16, 16, 3))
    x = L.Reshape((16, 8))(L.Conv2D(8, 4, strides=4)(inputs))
    x = L.GlobalAveragePooling1D()(Encoder(8, 2, name="encoder")(x))
    return keras.Model(inputs, L.Activation("softmax", dtype="float32")(L.Dense(5, kernel_initializer=sure())(x)))


def vit_settings():
    return {
        "optimizer": keras.optimizers.AdamW(0.01, weight_decay=0.05, epsilon=1e-3),
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3)],
    }


def half_settings():
    optimizer = keras.optimizers.SGD(0.05, global_clipnorm=1.0)
    return {
        "optimizer": keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0, dynamic_growth_steps=2),
        "loss": "sparse_categorical_crossentropy",
    }


def vit_data():
    weights = {i: 0.5 + i / 4 for i in range(5)}
    return {"x": images(16), "y": classes(5), "class_weight": weights}


# GAN: two networks, two optimizers, a training step of its own.


class GAN(keras.Model):
    def __init__(self, latent=6):
        super().__init__()
        self.latent = latent
        self.generator = keras.Sequential(
            [
                keras.Input((latent,)),
                L.Dense(4 * 4 * 8),
                L.Reshape((4, 4, 8)),
                L.Conv2DTranspose(8, 4, strides=2, padding="same", use_bias=False),
                L.BatchNormalization(momentum=0.5),
                L.LeakyReLU(0.2),
                L.Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh"),
            ],
            name="generator",
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((16, 16, 1)),
                L.Conv2D(8, 4, strides=2, padding="same"),
                L.LeakyReLU(0.2),
                L.Conv2D(8, 4, strides=2, padding="same", use_bias=False),
                L.BatchNormalization(momentum=0.5),
                L.LeakyReLU(0.2),
                L.Flatten(),
                L.Dropout(0.3),
                L.Dense(1, activation="sigmoid", kernel_initializer=sure()),
            ],
            name="discriminator",
        )
        self.seeds = keras.random.SeedGenerator(5)
        self.means = [keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")]

    def compile(self, d_optimizer, g_optimizer, loss, **kwargs):
        super().compile(**kwargs)
        self.d_optimizer, self.g_optimizer, self.loss_function = d_optimizer, g_optimizer, loss

    @property
    def metrics(self):
        return self.means

    def train_step(self, real):
        n = ops.shape(real)[0]

        def noise():
            return keras.random.normal((n, self.latent), seed=self.seeds)

        both = ops.concatenate([self.generator(noise(), training=True), real], axis=0)
        labels = ops.concatenate([ops.ones((n, 1)), ops.zeros((n, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seeds)
        with tf.GradientTape() as tape:
            d_loss = self.loss_function(labels, self.discriminator(both, training=True))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            fooled = self.discriminator(self.generator(noise(), training=True), training=True)
            g_loss = self.loss_function(ops.zeros((n, 1)), fooled)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        for mean, loss in zip(self.means, (d_loss, g_loss)):
            mean.update_state(loss)
        return {mean.name: mean.result() for mean in self.means}


def gan_settings():
    def adam():
        return keras.optimizers.Adam(0.002, beta_1=0.5, epsilon=1e-3)

    return {"d_optimizer": adam(), "g_optimizer": adam(), "loss": keras.losses.BinaryCrossentropy(label_smoothing=0.1)}


# VAE: the divergence is a loss that a layer adds.


class Sampling(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(23)

    def call(self, inputs):
        mean, log_variance = inputs
        divergence = -0.5 * (1.0 + log_variance - ops.square(mean) - ops.exp(log_variance))
        self.add_loss(0.1 * ops.mean(ops.sum(divergence, axis=1)))
        noise = keras.random.normal(ops.shape(mean), dtype=mean.dtype, seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * noise


def vae():
    x = inputs = keras.Input((16, 16, 1))
    for width in (8, 8):
        x = L.Conv2D(width, 3, strides=2, padding="same", activation="relu")(x)
    x = L.Dense(12, activation="relu", activity_regularizer="l2")(L.Flatten()(x))
    x = Sampling()([L.Dense(3, name="mean")(x), L.Dense(3, name="log_variance")(x)])
    x = L.Reshape((4, 4, 8))(L.Dense(4 * 4 * 8, activation="relu")(x))
    for width in (8, 4):
        x = L.Conv2DTranspose(width, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(
        inputs, L.Conv2DTranspose(1, 3, padding="same", activation="sigmoid", kernel_initializer=sure(400.0))(x)
    )


def vae_settings():
    optimizer = keras.optimizers.RMSprop(0.005, epsilon=1e-2, global_clipnorm=1.0)
    return {"optimizer": optimizer, "loss": "binary_crossentropy", "metrics": ["mae"]}


def vae_data():
    x = draws(6).uniform(size=(SAMPLES, 16, 16, 1)).astype("float32")
    return {"x": x, "y": x}


# Contrastive: images beside captions, each image to be told from all others of its batch.


class TwoTowers(keras.Model):
    def __init__(self):
        super().__init__()
        # The last layer is one for both.
        project = keras.Sequential([L.Dense(8), L.UnitNormalization()], name="project")
        x = inputs = keras.Input((16, 16, 3))
        for width in (8, 8):
            x = L.Conv2D(width, 3, strides=2, activation="swish")(x)
            x = L.GroupNormalization(2)(x)
        self.image = keras.Model(inputs, project(L.GlobalAveragePooling2D()(x)), name="image")
        x = inputs = keras.Input((6,), dtype="int32")
        x = L.Embedding(12, 8, mask_zero=True)(inputs)
        x = L.GRU(8, return_sequences=True, dropout=0.2)(x)
        x = L.Dropout(0.2)(L.GlobalAveragePooling1D()(L.Dense(8, activation="gelu")(x)))
        self.text = keras.Model(inputs, project(x), name="text")
        self.scale = self.add_weight(shape=(), initializer=keras.initializers.Constant(1.5), name="scale")

    def call(self, inputs, training=None):
        image, text = self.image(inputs["image"], training=training), self.text(inputs["text"], training=training)
        return ops.matmul(image, ops.transpose(text)) * ops.exp(self.scale)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        own = ops.arange(ops.shape(y_pred)[0])

        def one_way(scores):
            return ops.mean(ops.sparse_categorical_crossentropy(own, scores, from_logits=True))

        other = ops.softmax(ops.transpose(y_pred))
        return 0.5 * (one_way(y_pred) + ops.mean(ops.sparse_categorical_crossentropy(own, other)))


def two_towers():
    model = TwoTowers()
    model({"image": np.zeros((2, 16, 16, 3), "float32"), "text": np.ones((2, 6), "int32")})
    return model


def two_towers_settings():
    return {"optimizer": keras.optimizers.Adam(0.01, global_clipnorm=1.0, epsilon=1e-3)}


def two_towers_data():
    return {"x": {"image": images(16), "text": padded(12, 6)}}


# OCR: letters in an image, the alignment summed over by CTC.


class CTC(L.Layer):
    """Adds the loss of what was read, and hands it on."""

    def call(self, letters, read):
        ones = ops.ones((ops.shape(letters)[0],), "int32")
        lengths = ops.sum(ops.cast(letters > 0, "int32"), axis=1)
        loss = ops.ctc_loss(letters, ops.log(read + 1e-7), lengths, ones * read.shape[1], mask_index=0)
        self.add_loss(ops.mean(loss))
        return read


def ocr():
    image, letters = keras.Input((32, 16, 1), name="image"), keras.Input((4,), dtype="int32", name="letters")
    x = image
    for width in (8, 8):
        x = L.Conv2D(width, 3, activation="relu", padding="same", kernel_initializer="he_normal")(x)
        x = L.MaxPooling2D(2)(x)
    x = L.Dense(12, activation="relu")(L.Reshape((8, 32))(x))
    x = L.Bidirectional(L.LSTM(6, return_sequences=True, dropout=0.25))(L.Dropout(0.2)(x))
    read = L.Dense(7, activation="softmax", name="read")(x)
    return keras.Model([image, letters], CTC()(letters, read))


def ocr_data():
    x = draws(7).uniform(size=(SAMPLES, 32, 16, 1)).astype("float32")
    return {"x": {"image": x, "letters": padded(7, 4)}}


# T5: an encoder and a decoder that share their embedding, with masks.


class RMSNorm(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        return x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + 1e-6) * self.scale


class T5Attention(L.Layer):
    """No biases, no scaling; relative places say how far two tokens are apart."""

    def __init__(self, width, heads, causal=False, reach=4, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.heads, self.size, self.causal, self.reach = heads, width // heads, causal, reach
        self.parts = {name: L.Dense(width, use_bias=False, name=name) for name in ("q", "k", "v", "o")}
        self.places = L.Embedding(2 * reach + 1, heads, name="places")
        self.drop = L.Dropout(0.1)

    def call(self, x, memory, seen=None, training=None):
        def split(y):
            return ops.reshape(y, (-1, y.shape[1], self.heads, self.size))

        q, k, v = (split(self.parts[name](y)) for name, y in (("q", x), ("k", memory), ("v", memory)))
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k)
        apart = np.arange(k.shape[1])[None, :] - np.arange(q.shape[1])[:, None]
        bias = self.places(np.clip(apart, -self.reach, self.reach) + self.reach)
        scores = scores + ops.transpose(bias, (2, 0, 1))[None]
        if self.causal:
            scores = ops.where(apart <= 0, scores, -1e9)
        if seen is not None:
            scores = ops.where(seen[:, None, None, :], scores, -1e9)
        shares = self.drop(ops.softmax(scores), training=training)
        mixed = ops.einsum("bhqk,bkhd->bqhd", shares, v)
        return self.parts["o"](ops.reshape(mixed, (-1, q.shape[1], self.heads * self.size)))


class T5Block(L.Layer):
    """One block of the encoder, or, with `memory`, of the decoder; masks come as Keras's own and by keyword."""

    def __init__(self, width, decoder, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.norms = [RMSNorm(name=f"norm_{i}") for i in range(3 if decoder else 2)]
        self.attention = T5Attention(width, 2, causal=decoder, name="attention")
        self.cross = T5Attention(width, 2, name="cross") if decoder else None
        self.up, self.gate = L.Dense(12, use_bias=False), L.Dense(12, use_bias=False, activation="gelu")
        self.down, self.drop = L.Dense(width, use_bias=False), L.Dropout(0.1)

    def call(self, x, memory=None, memory_mask=None, training=None, mask=None):
        first, *more, last = self.norms
        y = first(x)
        x = x + self.drop(self.attention(y, y, mask, training=training), training=training)
        for norm in more:
            x = x + self.drop(self.cross(norm(x), memory, memory_mask, training=training), training=training)
        y = last(x)
        return x + self.drop(self.down(self.up(y) * self.gate(y)), training=training)


class Tied(L.Layer):
    """Scores of all tokens, by the embedding itself."""

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.embedding = embedding

    def call(self, x):
        return keras.activations.softmax(100.0 * ops.matmul(x, ops.transpose(self.embedding.embeddings)))


def t5():
    source, target = keras.Input((6,), dtype="int32", name="source"), keras.Input((5,), dtype="int32", name="target")
    embedding = L.Embedding(11, 8, mask_zero=True, name="tokens")
    x = T5Block(8, False, name="encoder_0")(L.Dropout(0.1)(embedding(source)))
    memory = RMSNorm()(x)
    x = T5Block(8, True, name="decoder_0")(
        L.Dropout(0.1)(embedding(target)), memory, memory_mask=ops.not_equal(source, 0)
    )
    return keras.Model({"source": source, "target": target}, Tied(embedding)(RMSNorm()(x)))


def t5_settings():
    return {
        "optimizer": keras.optimizers.SGD(0.05, momentum=0.9, weight_decay=0.01, clipnorm=0.5),
        "loss": "sparse_categorical_crossentropy",
        "weighted_metrics": ["accuracy"],
    }


def t5_data():
    x = {"source": padded(11, 6), "target": padded(11, 5, seed=9)}
    return {"x": x, "y": np.roll(x["target"], -1, axis=1), "sample_weight": draws(4).uniform(size=(SAMPLES, 5))}


EAGER = ("fit, eager",)
MODELS = {
    "U-Net": Model(unet, unet_settings, unet_data, tfgc.enable, gate=EAGER),
    "ViT": Model(
        vit,
        vit_settings,
        vit_data,
        lambda model: tfgc.enable(model, layers=["block_0", "block_1"]),
        fast=(),
        gate=("fit",),
    ),
    "ViT, mixed_float16": Model(vit, half_settings, vit_data, by_uniform(3), policy="mixed_float16", fast=()),
    "GAN": Model(
        GAN,
        gan_settings,
        lambda: {"x": images(16, 1)},
        by_uniform(3, "generator", "discriminator"),
        fast=("fit", *EAGER),
    ),
    "VAE": Model(vae, vae_settings, vae_data, by_uniform(4), gate=EAGER),
    "contrastive": Model(two_towers, two_towers_settings, two_towers_data, by_uniform(3, "image", "text")),
    "OCR": Model(
        ocr,
        lambda: {"optimizer": keras.optimizers.SGD(0.02, clipvalue=0.5)},
        ocr_data,
        by_uniform(4),
        fast=(),
        gate=("fit",),
    ),
    "T5": Model(t5, t5_settings, t5_data, by_uniform(3), fast=(), gate=("fit",)),
}
