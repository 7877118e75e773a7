"""Models with a `call` or a `train_step` in Python, built as the official Keras examples of their kind are.

Each builder returns a compiled model and what `fit` is given: inputs, and targets or None. The data are random.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def images(batch, size):
    return np.random.default_rng(0).random((batch, size, size, 3), dtype="float32")


def classes(count, *shape):
    return np.random.default_rng(1).integers(0, count, shape)


class DropPath(layers.Layer):
    """Drops a residual branch for some of the samples."""

    def __init__(self, rate=0.1):
        super().__init__()
        self.rate = rate

    def call(self, x, training=None):
        if not training:
            return x
        kept = 1 - self.rate + tf.random.uniform((tf.shape(x)[0],) + (1,) * (len(x.shape) - 1))
        return x / (1 - self.rate) * tf.floor(kept)


class TransformerBlock(layers.Layer):
    def __init__(self, width, heads=4):
        super().__init__()
        self.supports_masking = True
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.attention = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)
        self.mlp = keras.Sequential(
            [layers.Dense(4 * width, activation="gelu"), layers.Dropout(0.1), layers.Dense(width)]
        )
        self.drop = DropPath()

    def call(self, x, training=None):
        y = self.norms[0](x)
        x = x + self.drop(self.attention(y, y, training=training), training=training)
        return x + self.drop(self.mlp(self.norms[1](x), training=training), training=training)


class Student(keras.Model):
    """A small DeiT: a class token and a distillation token, and a head for each."""

    def __init__(self, width=128, blocks=6):
        super().__init__()
        self.width = width
        self.patches = layers.Conv2D(width, 8, strides=8)
        self.blocks = [TransformerBlock(width) for _ in range(blocks)]
        self.norm = layers.LayerNormalization()
        self.heads = [layers.Dense(5), layers.Dense(5)]

    def build(self, shape):
        self.tokens = self.add_weight(shape=(1, 2, self.width), name="tokens")

    def call(self, x, training=None):
        x = self.patches(x)
        x = tf.reshape(x, (-1, x.shape[1] * x.shape[2], self.width))
        x = tf.concat([tf.tile(self.tokens, (tf.shape(x)[0], 1, 1)), x], 1)
        for block in self.blocks:
            x = block(x, training=training)
        x = self.norm(x)
        return self.heads[0](x[:, 0]), self.heads[1](x[:, 1])


class Distiller(keras.Model):
    def __init__(self):
        super().__init__()
        self.student = Student()
        self.teacher = keras.Sequential(
            [layers.Conv2D(64, 3, padding="same"), layers.GlobalAveragePooling2D(), layers.Dense(5)]
        )
        self.teacher.trainable = False
        self.entropy = keras.losses.CategoricalCrossentropy(from_logits=True)

    def call(self, x, training=None):
        return self.student(x, training=training)

    def train_step(self, data):
        x, y = data
        hint = tf.nn.softmax(self.teacher(x, training=False))
        with tf.GradientTape() as tape:
            label, distilled = self.student(x, training=True)
            loss = (self.entropy(y, label) + self.entropy(hint, distilled)) / 2
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"distillation": loss}


def distiller(batch=8):
    model = Distiller()
    model.compile(keras.optimizers.AdamW(1e-3))
    return model, images(batch, 96), np.eye(5, dtype="float32")[classes(5, batch)]


class ShiftBlock(layers.Layer):
    """Moves a quarter of the channels by a pixel in each of three directions, before a convolution of 1 x 1."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def build(self, shape):
        self.norm = layers.LayerNormalization()
        self.wide = layers.Conv2D(2 * self.width, 1, activation="gelu")
        self.narrow = layers.Conv2D(self.width, 1)
        self.dropout, self.drop = layers.Dropout(0.1), DropPath()

    def call(self, x, training=None):
        a, b, c, rest = tf.split(x, 4, -1)
        moved = tf.concat([tf.roll(a, 1, 1), tf.roll(b, -1, 1), tf.roll(c, 1, 2), rest], -1)
        y = self.dropout(self.narrow(self.wide(self.norm(moved))), training=training)
        return x + self.drop(y, training=training)


class ShiftStage(layers.Layer):
    def __init__(self, width, blocks, merge):
        super().__init__()
        self.width, self.count, self.merge = width, blocks, merge

    def build(self, shape):
        self.blocks = [ShiftBlock(self.width) for _ in range(self.count)]
        self.last = layers.Conv2D(2 * self.width, 2, strides=2) if self.merge else layers.Identity()

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        return self.last(x)


class ShiftVit(keras.Model):
    def __init__(self):
        super().__init__()
        self.augment = keras.Sequential([layers.Rescaling(1 / 255), layers.RandomFlip("horizontal")])
        self.patches = layers.Conv2D(48, 2, strides=2)
        self.stages = [ShiftStage(48, 2, True), ShiftStage(96, 4, True), ShiftStage(192, 2, False)]
        self.pool, self.head = layers.GlobalAveragePooling2D(), layers.Dense(10)

    def call(self, x, training=None):
        x = self.patches(self.augment(x, training=training))
        for stage in self.stages:
            x = stage(x, training=training)
        return self.head(self.pool(x))


def shift_vit(batch=16):
    model = ShiftVit()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, 255 * images(batch, 64), classes(10, batch)


def unet(widths=(32, 48, 64), blocks=2, size=48):
    def residual(x, width):
        shortcut = x if x.shape[-1] == width else layers.Conv2D(width, 1)(x)
        x = layers.BatchNormalization(center=False, scale=False)(x)
        x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
        return layers.Add()([layers.Conv2D(width, 3, padding="same")(x), shortcut])

    noisy, variance = keras.Input((size, size, 3)), keras.Input((1, 1, 1))
    embedded = layers.UpSampling2D(size)(layers.Dense(16, activation="swish")(variance))
    x, skips = layers.Concatenate()([layers.Conv2D(widths[0], 1)(noisy), embedded]), []
    for width in widths[:-1]:
        for _ in range(blocks):
            x = residual(x, width)
            skips.append(x)
        x = layers.AveragePooling2D(2)(x)
    for _ in range(blocks):
        x = residual(x, widths[-1])
    for width in reversed(widths[:-1]):
        x = layers.UpSampling2D()(x)
        for _ in range(blocks):
            x = residual(layers.Concatenate()([x, skips.pop()]), width)
    return keras.Model([noisy, variance], layers.Conv2D(3, 1, kernel_initializer="zeros")(x))


class Diffusion(keras.Model):
    def __init__(self):
        super().__init__()
        self.network = unet()
        self.averaged = keras.models.clone_model(self.network)

    def call(self, x, training=None):
        return self.network(x, training=training)

    def train_step(self, pictures):
        noise = keras.random.normal(tf.shape(pictures))
        angle = keras.random.uniform((tf.shape(pictures)[0], 1, 1, 1))
        noisy = tf.cos(angle) * pictures + tf.sin(angle) * noise
        with tf.GradientTape() as tape:
            loss = self.loss(noise, self.network([noisy, tf.sin(angle) ** 2], training=True))
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for weight, average in zip(self.network.weights, self.averaged.weights, strict=True):
            average.assign(0.99 * average + 0.01 * weight)
        return {"noise": loss}


def diffusion(batch=8):
    model = Diffusion()
    model.compile(keras.optimizers.AdamW(1e-3), keras.losses.MeanAbsoluteError())
    return model, images(batch, 48), None


class Gan(keras.Model):
    def __init__(self):
        super().__init__()

        def normalized(convolution):
            return [convolution, layers.BatchNormalization(), layers.LeakyReLU(0.2)]

        self.discriminator = keras.Sequential(
            [
                keras.Input((48, 48, 3)),
                *(
                    layer
                    for width, strides in ((32, 1), (32, 1), (48, 2), (48, 1))
                    for layer in normalized(layers.Conv2D(width, 4, strides=strides, padding="same"))
                ),
                *[layers.Dropout(0.2), layers.GlobalAveragePooling2D(), layers.Dense(1)],
            ]
        )
        self.generator = keras.Sequential(
            [
                *[keras.Input((64,)), layers.Dense(12 * 12 * 48), layers.Reshape((12, 12, 48))],
                *normalized(layers.Conv2DTranspose(48, 4, strides=2, padding="same")),
                *normalized(layers.Conv2DTranspose(32, 4, strides=2, padding="same")),
                *normalized(layers.Conv2D(32, 5, padding="same")),
                layers.Conv2D(3, 5, padding="same", activation="tanh"),
            ]
        )
        self.optimizers = [keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-4)]
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, x):
        return self.discriminator(x)

    def update(self, part, optimizer, tape, loss):
        weights = part.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    def train_step(self, real):
        count = tf.shape(real)[0]
        drawn = self.generator(keras.random.normal((count, 64)), training=True)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], 0)
        with tf.GradientTape() as tape:
            judged = self.discriminator(tf.concat([drawn, real], 0), training=True)
            seen = self.entropy(labels, judged)
        self.update(self.discriminator, self.optimizers[0], tape, seen)
        with tf.GradientTape() as tape:
            drawn = self.generator(keras.random.normal((count, 64)), training=True)
            fooled = self.entropy(tf.zeros((count, 1)), self.discriminator(drawn, training=True))
        self.update(self.generator, self.optimizers[1], tape, fooled)
        return {"discriminator": seen, "generator": fooled}


def gan(batch=16):
    model = Gan()
    model.compile(loss="mse")
    return model, images(batch, 48), None


class Siamese(keras.Model):
    """Calls one encoder twice, with masks, and returns a dict."""

    def __init__(self, width=64):
        super().__init__()
        self.embedding = layers.Embedding(200, width, mask_zero=True)
        self.blocks = [TransformerBlock(width) for _ in range(4)]
        self.pool, self.code = layers.GlobalAveragePooling1D(), layers.Dense(8, activity_regularizer="l2")

    def encoded(self, tokens, training):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, training=training)
        return self.code(self.pool(x))

    def call(self, pair, training=None):
        a, b = self.encoded(pair["a"], training), self.encoded(pair["b"], training)
        return {"score": tf.reduce_sum(a * b, -1, keepdims=True), "code": a}


def siamese(batch=16):
    model = Siamese()
    model.compile("adam", {"score": "mse", "code": "mae"})
    x = {"a": classes(200, batch, 64), "b": classes(200, batch, 64)[::-1].copy()}
    return model, x, {"score": np.zeros((batch, 1), "float32"), "code": np.zeros((batch, 8), "float32")}


class ResidualBlock(layers.Layer):
    """A block that adds a loss on its activations."""

    def __init__(self, width):
        super().__init__()
        self.convolutions = [layers.Conv2D(width, 3, padding="same", use_bias=False) for _ in range(2)]
        self.norms = [layers.BatchNormalization() for _ in range(2)]
        self.dropout = layers.SpatialDropout2D(0.1)

    def call(self, x, training=None):
        y = tf.nn.relu(self.norms[0](self.convolutions[0](x), training=training))
        y = self.dropout(self.norms[1](self.convolutions[1](y), training=training), training=training)
        self.add_loss(1e-4 * tf.reduce_mean(y**2))
        return tf.nn.relu(x + y)


class ResidualNet(keras.Model):
    def __init__(self, width=32, blocks=6):
        super().__init__()
        self.stem = layers.Conv2D(width, 3, padding="same")
        self.blocks = [ResidualBlock(width) for _ in range(blocks)]
        self.pool, self.head = layers.GlobalAveragePooling2D(), layers.Dense(5)

    def call(self, x, training=None):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(self.pool(x))


def residual_net(batch=8):
    model = ResidualNet()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, images(batch, 48), classes(5, batch)
