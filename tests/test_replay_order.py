"""Replays of one backward pass run one after the other, and nothing is computed for that alone.

By the allocator's peak, and by the graph: what runs of it is what an output needs, by data or by a control edge.
"""

import collections
import re

import keras
import memory
import numpy as np
import tensorflow as tf
from equality import fresh, noise

import tfgc

L = keras.layers
X = noise(8, 16), noise(8, 16, seed=2)


class Wide(L.Layer):
    """Small outside, large inside."""

    def __init__(self, width=32, checked=False, **kwargs):
        super().__init__(**kwargs)
        self.up, self.down, self.checked = L.Dense(width, activation="gelu"), L.Dense(16), checked

    def build(self, shape):
        self.up.build(shape)
        self.down.build((*shape[:-1], self.up.units))

    def call(self, x):
        # An effect, as its gradient is: TensorFlow keeps them in the order in which they are traced.
        x = tf.debugging.check_numerics(x, "input") if self.checked else x
        return x + self.down(self.up(x))


class Twins(keras.Model):
    """One encoder for two inputs."""

    def __init__(self, width=32):
        super().__init__()
        self.blocks = [Wide(width, name=f"block_{i}") for i in range(3)]

    def call(self, pair, training=None):
        made = []
        for x in pair:
            for block in self.blocks:
                x = block(x)
            made.append(x)
        return made[0] * made[1]


def twins(width=32):
    model = Twins(width)
    model(X)
    return model


def branches(width=32):
    inputs = keras.Input((16,))
    sides = [Wide(width, name=f"side_{i}")(inputs) for i in range(4)]
    return keras.Model([inputs], L.Dense(4, name="head")(L.Add(name="sum")(sides)))


def by_layers(model):
    return tfgc.enable(model, layers=["block_*"] if isinstance(model, Twins) else ["side_*"])


def by_segments(model):
    sides = [tfgc.Segment((f"side_{i}",)) for i in range(4)]
    plan = tfgc.Plan((*sides, tfgc.Segment(("sum", "head"), mode="keep")), "by hand", tfgc.plan(model).model)
    return tfgc.enable(model, plan)


def nested(model):
    inner = tfgc.Plan(tuple(tfgc.Segment((f"side_{i}",)) for i in range(4)), "by hand", ())
    outer = tfgc.Segment(tuple(f"side_{i}" for i in range(4)), inner=inner)
    plan = tfgc.Plan((outer, tfgc.Segment(("sum", "head"), mode="keep")), "by hand", tfgc.plan(model).model)
    return tfgc.enable(model, plan)


def recomputed_twice(model):
    """Two levels without a plan."""
    for layer in model.layers:
        if isinstance(layer, Wide):
            layer.call = tfgc.recompute(layer.call)
    model.call = tfgc.recompute(model.call)
    return model


def values(model):
    return [v.value for v in model.trainable_variables]


def gradients(model, x, sources=None):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    return tape.gradient(loss, values(model) if sources is None else sources)


def assert_equal_gradients(ours, plain, x=X[0]):
    for one, other in zip(tf.function(lambda x: gradients(ours, x))(x), gradients(plain, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


# Memory


def peak_of(build, enable):
    model = fresh(lambda: build(1024))
    if enable is not None:
        enable(model)
    x = [noise(512, 16, seed=seed) for seed in range(2 if build is twins else 1)]
    return memory.peak(tf.function(lambda *x: gradients(model, x if build is twins else x[0])), *x)


INSIDE = 512 * 1024 * 4  # bytes of a tensor inside of a block


# What runs


def peaks():
    """The predicted and the measured peak of a step; layers are large beside their weights."""
    convolutions = [L.Conv2D(16, 3, padding="same", activation="gelu") for _ in range(24)]
    model = keras.Sequential([keras.Input((32, 32, 16)), *convolutions, L.GlobalAveragePooling2D()])
    plan = tfgc.plan(model, 32, strategy="optimal")
    found = tfgc.estimate(model, 32, plan, optimizer="sgd", loss="mse")
    step = tfgc.train_step(model, "mse", "sgd", plan=plan)
    return found.peak_bytes, memory.peak(step, tf.zeros((32, 32, 32, 16)), tf.zeros((32, 16)))


def peaks_of_kept_and_nested():
    """The predicted and the measured peak of a step of a chain in which each gradient of weights holds a fifth."""
    model = tfgc.zoo.build("sample_cnn", 64)
    limit = tfgc.estimate(model, 8, optimizer="sgd", loss="mse").needed_bytes * 2 // 5
    plan = tfgc.plan(model, 8, budget=limit, optimizer="sgd", loss="mse")
    found = tfgc.estimate(model, 8, plan, optimizer="sgd", loss="mse")
    step = tfgc.train_step(model, "mse", "sgd", plan=plan)
    return found.peak_bytes, memory.peak(step, tf.zeros((8, 64, 64)), tf.zeros((8, 10)), steps=8)


def convolutions(trainable):
    layers = [L.Conv2D(4, 1 + i, padding="same", name=f"conv_{i}") for i in range(5)]
    model = keras.Sequential([keras.Input((8, 8, 4)), *layers, L.GlobalAveragePooling2D(name="mean")])
    for layer in model.layers:
        layer.trainable = layer.name in trainable
    segments = [
        tfgc.Segment(("conv_0", "conv_1")),
        tfgc.Segment(("conv_2", "conv_3")),
        tfgc.Segment(("conv_4",), "keep"),
    ]
    plan = tfgc.Plan((*segments, tfgc.Segment(("mean",), "keep")), "by hand", tfgc.plan(model).model)
    return tfgc.enable(model, plan)


def waited_for(model):
    """For each convolution whose input's gradient waits for gradients of weights: whose."""
    operations = graph_of(lambda x: gradients(model, x), tf.zeros((2, 8, 8, 4))).get_operations()
    of_inputs = [op for op in operations if op.type == "Conv2DBackpropInput"]
    edges = [(op, other) for op in of_inputs for other in op.control_inputs if other.type == "Conv2DBackpropFilter"]
    return {tuple(re.findall(r"conv_\d", op.name)[0] for op in pair) for pair in edges}


def chain(trainable="01234"):
    return fresh(lambda: convolutions([f"conv_{i}" for i in trainable]))


def attentive():
    inputs = keras.Input((6, 16))
    x = L.Dense(16, name="second")(L.Dense(16, name="first")(inputs))
    model = keras.Model(inputs, L.MultiHeadAttention(2, 8, name="attention")(x, x))
    segments = [tfgc.Segment(("first",)), tfgc.Segment(("second",)), tfgc.Segment(("attention",), "keep")]
    return tfgc.enable(model, tfgc.Plan(tuple(segments), "by hand", tfgc.plan(model).model))


def towers(width=32, kept=3, checked=False):
    """Two branches of unequal length: a tape is through the first one before it comes to replays of the second."""
    inputs = keras.Input((16,)), keras.Input((16,))
    x, y = L.Dense(16, name="embedding")(inputs[0]), inputs[1]
    for i in range(2):
        x = Wide(width, checked, name=f"one_{i}")(x)
    for i in range(2):
        y = Wide(width, checked, name=f"two_{i}")(y)
    for i in range(kept):
        y = Wide(width, checked, name=f"kept_{i}")(y)
    model = keras.Model(inputs, L.Dense(4, name="head")(L.Multiply(name="product")([x, y])))
    blocks = [tfgc.Segment((name,)) for name in ("one_0", "one_1", "two_0", "two_1")]
    rest = (*(f"kept_{i}" for i in range(kept)), "product", "head")
    segments = (tfgc.Segment(("embedding",), "keep"), *blocks, tfgc.Segment(rest, "keep"))
    return model, tfgc.Plan(segments, "by hand", tfgc.plan(model).model)


def enabled_towers(**options):
    model, plan = towers(**options)
    return tfgc.enable(model, plan)


class Checked(L.Layer):
    """The gradients of inputs and of weights are checked in turn."""

    def build(self, shape):
        self.kernels = [self.add_weight(shape=(16, 16), name=f"kernel_{i}") for i in range(2)]

    def call(self, x):
        for kernel in self.kernels:
            checked = tf.debugging.check_numerics(kernel.value, "kernel")
            x = tf.tanh(tf.debugging.check_numerics(x, "input") @ checked)
        return x


def checked_chain(segments):
    model = keras.Sequential([keras.Input((16,)), *(Checked(name=f"checked_{i}") for i in range(4))])
    plan = tfgc.Plan(tuple(segments), "by hand", tfgc.plan(model, strategy="keep_all").model)
    return tfgc.enable(model, plan)


class Three(keras.Model):
    """Three branches, which a tape comes to in the order of their first runs: the last one has the longest kept end."""

    def __init__(self):
        super().__init__()
        self.embedding = L.Dense(16)
        self.branches = [Wide(32, checked, name=f"branch_{i}") for i, checked in enumerate([True, False, True])]
        self.ends = [[L.Dense(16) for _ in range(count)] for count in (0, 4, 12)]

    def call(self, x):
        x, product = self.embedding(x), 1.0
        for branch, ends in zip(self.branches, self.ends, strict=True):
            y = branch(x)
            for end in ends:
                y = end(y)
            product = product * y
        return product


def three():
    model = Three()
    model(X[0])
    return model


class CheckedDense(L.Dense):
    def call(self, x):
        return super().call(tf.debugging.check_numerics(x, "input"))


def side_by_side(layer):
    inputs = keras.Input((16,))
    x = L.Dense(16, name="below")(inputs)
    return keras.Model(inputs, L.Add(name="sum")([layer(16, name="one")(x), layer(16, name="other")(x)]))


def test_branches_with_effects_in_one_replay():
    model = fresh(lambda: side_by_side(CheckedDense))
    tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=1))
    assert_equal_gradients(model, fresh(lambda: side_by_side(CheckedDense)))


def peak_of_towers(is_enabled):
    model, plan = fresh(lambda: towers(1024))
    if is_enabled:
        tfgc.enable(model, plan)
    x = [noise(512, 16, seed=seed) for seed in range(2)]
    return memory.peak(tf.function(lambda *x: gradients(model, x)), *x)


def graph_of(step, *x):
    return tf.function(step).get_concrete_function(*x).graph


def running(graph):
    """How many operations of each type an output needs, those of functions too; without those that pass on."""
    waiting, seen = [tensor.op for tensor in graph.outputs], set()
    while waiting:
        op = waiting.pop()
        if op.name not in seen:
            seen.add(op.name)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    running_here = [op for op in graph.get_operations() if op.name in seen]
    found = collections.Counter(op.type for op in running_here)
    for op in running_here:
        if "PartitionedCall" in op.type:
            found += running(graph._get_function(op.get_attr("f").name).graph)
    del found["Identity"]
    return found


def edges(graph):
    return sum(len(op.control_inputs) for op in graph.get_operations())


def to_an_input(model, x):
    """As a generator's step differentiates a discriminator, whose weights are watched."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    return tape.gradient(loss, x)


def to_one_side_after_the_other(model, x):
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    tape.gradient(loss, model.get_layer("side_0").trainable_variables[0].value)  # nobody reads it
    return tape.gradient(loss, model.get_layer("side_2").trainable_variables[0].value)


def of_one_side(model, x):
    return gradients(model, x, model.get_layer("side_1").trainable_variables[0].value)


def in_a_function(model, x):
    return to_an_input(tf.function(model), x)


STEPS = [to_an_input, to_one_side_after_the_other, of_one_side, in_a_function]


def frozen_beside_trained():
    """Kernels of one shape that read the same."""
    inputs = keras.Input((16,))
    x = L.Dense(16, name="below")(inputs)
    sides = [L.Dense(16, name=name, use_bias=False)(x) for name in ("frozen", "trained")]
    model = keras.Model(inputs, L.Add(name="sum")(sides))
    model.get_layer("frozen").trainable = False
    segments = tfgc.Segment(("below",)), tfgc.Segment(("frozen", "trained", "sum"), "keep")
    return tfgc.enable(model, tfgc.Plan(segments, "by hand", tfgc.plan(model, strategy="keep_all").model))


def above_frozen():
    """Branches that read what no weight that trains is below."""
    inputs = keras.Input((16,))
    x = L.Dense(16, name="below", trainable=False)(inputs)
    sides = [L.Dense(16, name=f"side_{i}", activation="tanh")(x) for i in range(3)]
    return keras.Model(inputs, L.Add(name="sum")(sides))


def with_a_sum_for_later(is_copied):
    """A difference, which the last layer reads, is made before a branch."""
    inputs, shift = keras.Input((16,)), tf.Variable(0.5)
    one, other = (L.Dense(16, name=name)(inputs) for name in ("one", "other"))
    later = L.Subtract(name="later")([one, other])
    branch = L.Dense(16, name="branch", activation="tanh")(one)
    if not is_copied:  # A trace of what closes over a plain variable is not copied.
        branch = L.Lambda(lambda x: x * shift, name="shifted")(branch)
    return keras.Model(inputs, L.Multiply(name="last")([later, branch]))


class Gate(L.Layer):
    """Its gradient differentiates something that is recomputed."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inside = Wide(name="block_inside")

    def build(self, shape):
        self.inside.build(shape)

    def call(self, x):
        @tf.custom_gradient
        def gate(x):
            def backward(upstream):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    made = self.inside(x)
                return tape.gradient(made, x, output_gradients=upstream)

            return tf.identity(x), backward

        return gate(x)


def gated():
    blocks = [Wide(name=f"block_{i}") for i in range(4)]
    model = keras.Sequential([keras.Input((16,)), *blocks[:2], Gate(name="gate"), *blocks[2:], L.Dense(4)])
    return tfgc.enable(model, layers=["block_*"])


# Gradients


def of_second_order(model, x):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(model(x, training=True))
        penalty = tf.reduce_sum(inner.gradient(y, x) ** 2)
    return outer.gradient(penalty, values(model), unconnected_gradients="zero")


def by_jacobian(model, x):
    with tf.GradientTape(persistent=True) as tape:
        y = tf.reduce_sum(model(x, training=True), axis=0)
    return tape.jacobian(y, values(model))


def in_a_loop(model, x):
    def body(i, x):
        return i + 1, x + tf.reduce_mean(model(x, training=True), axis=-1, keepdims=True)

    with tf.GradientTape() as tape:
        _, y = tf.while_loop(lambda i, x: i < 3, body, (0, x))
        loss = tf.reduce_mean(y**2)
    return tape.gradient(loss, values(model))


def in_a_loop_of_steps(model, x):
    def body(i, *total):
        return i + 1, *(t + g for t, g in zip(total, gradients(model, x)))

    return tf.while_loop(lambda i, *_: i < 2, body, (0, *map(tf.zeros_like, values(model))))[1:]


def in_a_branch(model, x):
    with tf.GradientTape() as tape:
        y = tf.cond(tf.reduce_sum(x) < 1e9, lambda: model(x, training=True), lambda: model(2 * x, training=True))
        loss = tf.reduce_mean(y**2)
    return tape.gradient(loss, values(model))


def twice_by_a_persistent_tape(model, x):
    with tf.GradientTape(persistent=True) as tape:
        y = model(x, training=True)
        losses = tf.reduce_mean(y**2), tf.reduce_sum(y[:, 1:])
    return [tape.gradient(loss, values(model)) for loss in losses]


def through_a_gradient_of_its_own(model, x):
    """A custom gradient that differentiates the model again while its own gradient is taken."""

    @tf.custom_gradient
    def noted(y):
        def backward(upstream):
            return upstream * tf.reduce_sum([tf.reduce_sum(g**2) for g in gradients(model, x)])

        return tf.identity(y), backward

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((noted(model(x, training=True)) + noted(model(2 * x, training=True))) ** 2)
    return tape.gradient(loss, values(model))


def of_gathered_rows(model, x):
    """What comes back is sparse."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(model(x, training=True), [0, 2, 2]) ** 2)
    return tape.gradient(loss, values(model))


def assert_near(plain, ours):
    norms = [np.linalg.norm(g) for g in plain]
    assert max(norms) > 0
    for a, b, norm in zip(plain, ours, norms, strict=True):
        assert np.linalg.norm(b - a) <= 1e-5 * max(norm, 1e-3 * max(norms))


WAYS = [
    gradients, of_second_order, by_jacobian, in_a_loop, in_a_loop_of_steps, in_a_branch, twice_by_a_persistent_tape,
    through_a_gradient_of_its_own, of_gathered_rows,
]  # fmt: skip


def test_two_models_in_one_step():
    """As a GAN has them: the second pass goes through the model that the first one trained."""

    def run(enable):
        makers, judges = enable(fresh(branches)), enable(fresh(twins))

        @tf.function
        def step(x, y):
            made = tf.tile(makers(x, training=True), (1, 4))
            first = gradients(judges, (made, y))
            with tf.GradientTape() as tape:
                made = tf.tile(makers(x, training=True), (1, 4))
                loss = tf.reduce_mean(judges((made, y), training=True))
            return first, tape.gradient(loss, values(makers))

        return tf.nest.flatten(step(*X))

    assert_near(run(lambda model: model), run(by_layers))


def test_gradients_that_onednn_makes_at_once_wait_for_each_others_inputs():
    """Of the filter and the bias of a convolution: an edge from one to what the other reads is a circle once fused."""

    def towers():
        x = keras.Input((64, 64, 8))
        each = [L.Conv2D(4, 3, strides=4, name=f"conv_{i}")(L.Activation("tanh")(x)) for i in range(4)]
        return keras.Model(x, L.Dense(4)(L.Flatten()(L.Concatenate()(each))))

    images, targets = tf.random.normal((32, 64, 64, 8), seed=1), tf.random.normal((32, 4), seed=2)
    losses = []
    for recomputes in (False, True):
        keras.utils.set_random_seed(3)
        model = towers()
        model.compile("sgd", "mse", jit_compile=False)
        if recomputes:
            plan = tfgc.plan(model, 32, strategy="manual", keep=["conv_0"])
            assert [segment.mode for segment in plan.segments] == ["recompute", "keep"]
            tfgc.enable(model, plan)
        losses.append([model.train_on_batch(images, targets) for _ in range(2)])
    np.testing.assert_allclose(*losses, rtol=1e-5)
