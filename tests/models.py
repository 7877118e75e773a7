"""Models that several test modules train, what each is fed, and plans inside of plans for them."""

import keras
import numpy as np
import tensorflow as tf
from equality import noise

from tfgc import Plan, Segment
from tfgc._core.plan import describe

L = keras.layers
X, Y = noise(16, 8), [noise(16, 4, seed=2)]
TOKENS = tf.constant(np.random.default_rng(3).integers(0, 4, (16, 6)), "int32")

# Randomness, state, masks and losses


class Noisy(keras.layers.Layer):
    """Draws from Keras's global generator, which is no variable of the model."""

    def call(self, x):
        return x + keras.random.normal((4,), dtype=self.compute_dtype) * x


class Counting(keras.layers.Layer):
    """Holds a metric that counts each call once."""

    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean()

    def call(self, x):
        self.mean.update_state(keras.ops.mean(x))
        return x * 2.0


class Counter(keras.layers.Layer):
    """State beside the weights: how often it was called, and a running mean."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, x, training=None):
        if training:
            self.calls.assign(self.calls + 1)
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=tuple(range(len(x.shape) - 1))))
        return x - self.mean


class Halved(keras.optimizers.SGD):
    """Has no `get_config` for what its constructor takes, so that it cannot be copied."""

    def __init__(self, doubled_rate):
        super().__init__(doubled_rate / 2, momentum=0.9)


class SharedNoise(keras.layers.Layer):
    """Draws from a generator that other layers draw from too."""

    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def call(self, x):
        return x * keras.random.uniform(keras.ops.shape(x), seed=self.generator)


class Penalised(keras.layers.Layer):
    """Adds a loss in `call`, and another through its sublayer if that has a regularizer."""

    def __init__(self, activity_regularizer=None):
        super().__init__()
        self.dense = L.Dense(6, activity_regularizer=activity_regularizer, kernel_regularizer="l1")

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        y = self.dense(x)
        self.add_loss(keras.ops.mean(keras.ops.square(y)))
        return y


class PlainVariable(keras.layers.Layer):
    """Holds a `tf.Variable` that is in no list of Keras."""

    def __init__(self, variable):
        super().__init__()
        self.variable = variable

    def call(self, x):
        return x * self.variable


def dropout():
    return keras.Sequential(
        [keras.Input((8,)), L.Dense(16), L.Dropout(0.5), L.Dense(16), L.Dropout(0.5), L.Dense(8), L.Dense(4)]
    )


def batch_normalization():
    return keras.Sequential(
        [
            keras.Input((8,)),
            L.Dense(8),
            L.BatchNormalization(momentum=0.5),
            L.ReLU(),
            L.Dense(8),
            L.BatchNormalization(momentum=0.5),
            L.Dense(4),
        ]
    )


def auxiliary_losses():
    return keras.Sequential(
        [
            keras.Input((8,)),
            L.Dense(8, activity_regularizer="l2"),
            Penalised(),
            L.Dense(6, kernel_regularizer="l2"),
            Penalised(),
            L.Dense(4),
        ]
    )


def losses_on_one_tensor():
    """A tensor with three uses: two losses and the next layer."""
    return keras.Sequential([keras.Input((8,)), L.Dense(8), Penalised("l2"), L.Dense(6), Penalised("l2"), L.Dense(4)])


def shared_penalised_layer():
    inputs = keras.Input((6,))
    shared = Penalised()
    x = shared(inputs)
    x = L.Dense(6)(x)
    x = shared(x)
    return keras.Model(inputs, L.Dense(4)(x))


def masked():
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(20, 8, mask_zero=True)(inputs)
    x = L.Dropout(0.2)(x)
    x = L.LSTM(8, return_sequences=True)(x)
    x = L.Bidirectional(L.LSTM(4, return_sequences=True))(x)
    x = L.Dense(8)(x)
    x = L.LSTM(8)(x)
    return keras.Model(inputs, L.Dense(4)(x))


def stateful_gru():
    inputs = keras.Input(batch_shape=(16, 5, 4))
    x = L.GRU(6, stateful=True, return_sequences=True)(inputs)
    x = L.GRU(6, stateful=True)(x)
    return keras.Model(inputs, L.Dense(4)(x))


def spectral_normalization():
    return keras.Sequential(
        [
            keras.Input((8,)),
            L.SpectralNormalization(L.Dense(8)),
            L.ReLU(),
            L.SpectralNormalization(L.Dense(8)),
            L.Dense(4),
        ]
    )


def metric_inside():
    return keras.Sequential([keras.Input((8,)), L.Dense(6), Counting(), L.Dense(6), Counting(), L.Dense(4)])


def global_seed():
    return keras.Sequential([keras.Input((8,)), L.Dense(4), Noisy(), L.Dense(4), Noisy(), L.Dense(4), L.Dense(4)])


def branches_draw_from_one_generator():
    inputs = keras.Input((4,))
    generator = keras.random.SeedGenerator(3)
    wide = L.Dropout(0.5, seed=1)(L.Dense(32)(inputs))
    narrow = Noisy()(L.Dense(4)(inputs))
    x = L.Concatenate()([SharedNoise(generator)(wide), SharedNoise(generator)(narrow), Noisy()(narrow)])
    return keras.Model(inputs, L.Dense(4)(x))


def convolution_bias_before_normalization():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(4, 3),
            L.BatchNormalization(),
            L.ReLU(),
            L.Conv2D(4, 3),
            L.BatchNormalization(),
            L.ReLU(),
            L.Flatten(),
            L.Dense(4),
        ]
    )


STATEFUL = [
    dropout,
    batch_normalization,
    auxiliary_losses,
    losses_on_one_tensor,
    shared_penalised_layer,
    masked,
    stateful_gru,
    spectral_normalization,
    metric_inside,
    global_seed,
    branches_draw_from_one_generator,
    convolution_bias_before_normalization,
]

# Calls with keywords, and gradients that are None or sparse


class Keywords(keras.layers.Layer):
    """Called with tensors, flags, text and None by keyword."""

    def call(self, x, *, other, flag=True, name="sum", nothing=None, training=None, **rest):
        assert nothing is None
        assert name == "difference"
        assert rest == {"power": 2}
        return x - keras.ops.power(other, rest["power"]) if flag else x


class HalfUsed(keras.layers.Layer):
    """Has a weight that no gradient reaches, and two outputs of which one is not used."""

    def build(self, shape):
        self.used = self.add_weight(shape=(shape[-1], 8), name="used")
        self.unused = self.add_weight(shape=(3,), name="unused")

    def call(self, x):
        return x @ self.used, keras.ops.argmax(x, axis=-1) + keras.ops.cast(keras.ops.sum(self.unused), "int32")


def keywords():
    inputs = keras.Input((8,))
    a, b = L.Dense(8)(inputs), L.Dense(8)(inputs)
    c = Keywords()(a, other=b, name="difference", power=2)
    d = Keywords()(L.Dense(8)(c), other=c, flag=False, name="difference", power=2)
    return keras.Model(inputs, L.Dense(4)(d))


def half_used():
    inputs = keras.Input((8,))
    x, _ = HalfUsed()(inputs)
    x, _ = HalfUsed()(L.Dense(8)(x))
    return keras.Model(inputs, L.Dense(4)(x))


def embeddings():
    inputs = keras.Input((5,), dtype="int32")
    x = L.Embedding(30, 8)(inputs)
    y = L.Embedding(30, 8)(inputs)
    x = L.LayerNormalization()(x * y)
    return keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling1D()(L.Dense(8)(x))))


def attention():
    inputs = keras.Input((5,), dtype="int32")
    x = L.Embedding(30, 8, mask_zero=True)(inputs)
    x = L.MultiHeadAttention(2, 4, dropout=0.1)(x, x, use_causal_mask=True)
    x = L.Dropout(0.1)(L.LayerNormalization()(x))
    return keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling1D()(x)))


CALLS = [keywords, half_used, embeddings, attention]
WORDS = tf.constant(np.random.default_rng(3).integers(0, 30, (16, 5)), "int32")
INPUTS = {
    masked: TOKENS,
    stateful_gru: noise(16, 5, 4),
    shared_penalised_layer: noise(16, 6),
    branches_draw_from_one_generator: noise(16, 4),
    convolution_bias_before_normalization: noise(16, 8, 8, 3),
    embeddings: WORDS,
    attention: WORDS,
}
# Gradients that losses of layers make come to the trace with those of results: they are summed in another order.
# That is 4 n eps for a tensor with n uses: here two calls, or two losses, and one.
ROUNDING = dict.fromkeys([losses_on_one_tensor, shared_penalised_layer], 4 * 3 * 1.2e-7)


def inputs_of(build):
    """What a model of `STATEFUL` or `CALLS` is fed; its targets are `Y`."""
    return INPUTS.get(build, X)


# Graphs of every shape


def unet():
    inputs = keras.Input((16, 16, 3))
    x, skips = inputs, []
    for filters in (4, 8):
        x = L.Conv2D(filters, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = L.MaxPooling2D()(x)
    x = L.Conv2D(8, 3, padding="same", activation="relu")(x)
    for filters, skip in zip((8, 4), reversed(skips)):
        x = L.Concatenate()([L.UpSampling2D()(x), skip])
        x = L.BatchNormalization()(L.Conv2D(filters, 3, padding="same")(x))
    return keras.Model(inputs, L.Conv2D(4, 1)(x), name="unet")


def nested():
    block = keras.Sequential([keras.Input((6,)), L.Dense(6), L.Dropout(0.3), L.Dense(6)], name="block")
    inner_in = keras.Input((6,))
    inner = keras.Model(inner_in, [block(inner_in), L.Dense(3)(inner_in)], name="inner")
    inputs = keras.Input((6,))
    a, b = inner(inputs)
    c, d = inner(a)
    return keras.Model(inputs, L.Concatenate()([a + c, b * d]))


def shared():
    inputs = keras.Input((6,))
    layer, norm = L.Dense(6), L.BatchNormalization(momentum=0.5)
    x = norm(layer(inputs))
    return keras.Model(inputs, L.Dense(4)(norm(layer(x))))


def ops_as_layers():
    inputs = keras.Input((6,))
    x = L.Dense(6)(inputs)
    y = keras.ops.tanh(x) + x * 2.0
    left, right = keras.ops.split(y, 2, axis=-1)
    z = keras.ops.concatenate([left - right, keras.ops.mean(y, axis=-1, keepdims=True)], axis=-1)
    return keras.Model(inputs, L.Dense(4)(z[:, 1:]))


# Subclassed models, and one of everything


class Residual(L.Layer):
    """A block with randomness, statistics, a loss and a sublayer that is built late."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.first = L.Dense(units, activation="relu", activity_regularizer="l2")
        self.norm = L.BatchNormalization(momentum=0.5)
        self.drop = L.Dropout(0.4)
        self.second = L.Dense(8, name="out")

    def call(self, x, training=None):
        y = self.drop(self.norm(self.first(x), training=training), training=training)
        self.add_loss(0.01 * keras.ops.mean(y**2))
        return x + self.second(y)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Residual(16, name=f"block_{i}") for i in range(3)]
        self.head = L.Dense(4)

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x)


def built(kind, x):
    def build():
        model = kind()
        model(x)
        keras.utils.set_random_seed(11)
        return model

    return build


def everything():
    return keras.Sequential(
        [
            keras.Input((8,)),
            L.Dense(8, activity_regularizer="l2"),
            L.Dropout(0.5),
            L.Dense(8),
            L.BatchNormalization(momentum=0.5),
            L.Dense(8, activation="tanh"),
            L.GaussianNoise(0.1),
            L.Dense(4),
        ]
    )


# Layers that count how often they run


class Traced(keras.layers.Layer):
    """Scales its input by a weight, or by a constant, and prints its name when it runs.

    Once in `call`, and once more in its gradient. Printing is the one side effect that tfgc allows to happen twice, so
    the lines are the work that was done.
    """

    def __init__(self, path, *, weight=True, **kwargs):
        super().__init__(**kwargs)
        self.file = f"file://{path}"
        self.scale = self.add_weight(shape=(3,), initializer="ones", name="scale") if weight else 2.0

    def call(self, x):
        name, path = self.name, self.file

        @tf.custom_gradient
        def printing(x):
            with tf.control_dependencies([tf.print("forward", name, output_stream=path)]):
                y = tf.identity(x)

            def upstream(dy):
                with tf.control_dependencies([tf.print("backward", name, output_stream=path)]):
                    return tf.identity(dy)

            return y, upstream

        return printing(tf.convert_to_tensor(x) * tf.convert_to_tensor(self.scale))


def traced_chain(lines, weights="yyyy"):
    """One layer for each letter, with a weight where it is y; `lines` is the fixture that reads what they print."""
    layers = [Traced(lines.path, weight=w == "y", name=f"l{i}") for i, w in enumerate(weights)]
    return keras.Sequential([keras.Input((3,)), *layers])


def run_traced(model, mode, take=lambda tape, y, model: tape.gradient(y, model.trainable_variables[0].value)):
    """Run a chain of `Traced` layers once, and what `take` asks of its tape, by default one gradient."""
    x = noise(4, 3)

    def step():
        with tf.GradientTape(persistent=True) as tape:
            y = model(x, training=True)
        return take(tape, y, model)

    return (tf.function(step) if mode == "graph" else step)()


def step_of(model, jit_compile):
    """A `tf.function` that takes the gradients of the mean square of a model's output."""
    variables = [v.value for v in model.trainable_variables]

    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return tape.gradient(loss, variables)

    return step


# Plans inside of plans: `again` and `keep` make segments of nodes, `nest` one of segments.


def again(*nodes):
    return Segment(nodes)


def keep(*nodes):
    return Segment(nodes, "keep")


def nest(*inner):
    return Segment(tuple(n for s in inner for n in s.nodes), inner=Plan(inner, "by hand", ()))


def halves(nodes):
    """The first half nested, then half of the rest nested, and so on; the last node kept."""
    done = []
    while len(nodes) > 1:
        half, nodes = nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]
        done.append(nest(*halves(half)) if len(half) > 1 else again(*half))
    return [*done, keep(*nodes)]


def plan_for(graph, segments):
    """A plan made by hand, for the model that a graph was read from."""
    return Plan(tuple(segments), "by hand", describe(graph))


class DividedByMask(L.Layer):
    """Divides by how much the mask of its second input leaves of the batch; Keras attaches it to the tensor alone."""

    supports_masking = True

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, inputs, mask=None):
        x, _ = inputs
        return x / tf.reduce_sum(tf.cast(mask[1], x.dtype))
