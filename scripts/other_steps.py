"""Training steps of other people's kinds, plain and rewritten: memory, and whether the values have the same bits.

    python scripts/other_steps.py
    python scripts/other_steps.py sam maml

Each case runs in a process of its own: plain `tf.function` and the rewritten step, from the same weights. Values are
those of three steps with TensorFlow's graph optimizer off, and the weights behind them. Peaks are the allocator's above
what is held before a step, with the optimizer on; simulated ones are sums of the step's own buffers.
"""

import argparse
import importlib.util
import math
import os
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf
from scipy.optimize import linear_sum_assignment

import tfgc

L = keras.layers
STEPS = 3


def normal(*shape, seed=0, scale=1.0):
    return tf.random.stateless_normal(shape, (seed, len(shape)), stddev=scale)


def dense(inputs, depth=8, width=256, activation="gelu", outputs=1):
    return keras.Sequential(
        [keras.Input((inputs,)), *(L.Dense(width, activation) for _ in range(depth)), L.Dense(outputs)]
    )


def convolutions(depth=8, channels=24, activation="gelu", inputs=3, outputs=None, rate=0.0):
    """A network of images; of vectors behind the pooling where it has outputs."""
    x = given = keras.Input((48, 48, inputs))
    for _ in range(depth):
        x = L.Conv2D(channels, 3, padding="same", activation=activation)(x)
        x = L.Dropout(rate)(x) if rate else x
    if outputs:
        x = L.Dense(outputs)(L.GlobalAveragePooling2D()(x))
    return keras.Model(given, x)


def descend(tape, loss, variables, rate=0.01):
    for v, gradient in zip(variables, tape.gradient(loss, variables)):
        v.assign_sub(rate * tf.convert_to_tensor(gradient))


def mean_square(x):
    return tf.reduce_mean(tf.square(x))


def gan():
    maker, judge = convolutions(inputs=8), convolutions(rate=0.2, inputs=24, outputs=1)

    def step(noise, real):
        with tf.GradientTape() as tape:
            made, seen = judge(maker(noise, training=True), training=True), judge(real, training=True)
            loss = tf.reduce_mean(tf.nn.softplus(made) + tf.nn.softplus(-seen))
        descend(tape, loss, judge.trainable_variables)
        with tf.GradientTape() as tape:
            other = tf.reduce_mean(tf.nn.softplus(-judge(maker(noise, training=True), training=True)))
        descend(tape, other, maker.trainable_variables)
        return loss, other

    return step, (normal(16, 48, 48, 8), normal(16, 48, 48, 24, seed=1)), [*maker.variables, *judge.variables]


def wgan_gp():
    critic = convolutions(activation="leaky_relu", outputs=1)

    def step(made, real):
        with tf.GradientTape() as tape:
            between = real + tf.random.stateless_uniform((len(real), 1, 1, 1), (1, 2)) * (made - real)
            with tf.GradientTape() as inner:
                inner.watch(between)
                score = critic(between, training=True)
            slope = tf.sqrt(tf.reduce_sum(tf.square(inner.gradient(score, between)), (1, 2, 3)) + 1e-12)
            loss = tf.reduce_mean(critic(made, training=True) - critic(real, training=True))
            loss += 10.0 * mean_square(slope - 1.0)
        descend(tape, loss, critic.trainable_variables)
        return loss

    return step, (normal(16, 48, 48, 3), normal(16, 48, 48, 3, seed=1)), critic.variables


def r1():
    judge = convolutions(activation="swish", outputs=1)

    def step(made, real):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(real)
                seen = judge(real, training=True)
            penalty = tf.reduce_mean(tf.reduce_sum(tf.square(inner.gradient(seen, real)), (1, 2, 3)))
            loss = tf.reduce_mean(tf.nn.softplus(judge(made, training=True)) + tf.nn.softplus(-seen)) + 5.0 * penalty
        descend(tape, loss, judge.trainable_variables)
        return loss, penalty

    return step, (normal(16, 48, 48, 3), normal(16, 48, 48, 3, seed=1)), judge.variables


def sam():
    model = convolutions(outputs=10)

    def step(x, y):
        def loss_and_gradients():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), True))
            return loss, tape.gradient(loss, model.trainable_variables)

        loss, gradients = loss_and_gradients()
        scale = 0.05 / (tf.linalg.global_norm(gradients) + 1e-12)
        for v, gradient in zip(model.trainable_variables, gradients):
            v.assign_add(scale * gradient)
        _, sharp = loss_and_gradients()
        for v, gradient, other in zip(model.trainable_variables, gradients, sharp):
            v.assign_sub(scale * gradient)
            v.assign_sub(0.01 * other)
        return loss

    return step, (normal(32, 48, 48, 3), tf.range(32) % 10), model.variables


def maml():
    weights = [tf.Variable(normal(a, 256, seed=i, scale=a**-0.5)) for i, a in enumerate([64, 256, 256, 256, 256])]
    last = tf.Variable(normal(256, 1, scale=0.05))

    def loss_of(weights, x, y):
        for w in weights[:-1]:
            x = tf.nn.gelu(x @ w)
        return mean_square(x @ weights[-1] - y)

    def step(x, y, new_x, new_y):
        with tf.GradientTape() as tape:
            fast = [tf.convert_to_tensor(w) for w in (*weights, last)]
            for _ in range(2):
                with tf.GradientTape() as inner:
                    inner.watch(fast)
                    loss = loss_of(fast, x, y)
                fast = [w - 0.1 * gradient for w, gradient in zip(fast, inner.gradient(loss, fast))]
            loss = loss_of(fast, new_x, new_y)
        descend(tape, loss, [*weights, last])
        return loss

    args = (normal(2048, 64), normal(2048, 1, seed=1), normal(2048, 64, seed=2), normal(2048, 1, seed=3))
    return step, args, [*weights, last]


def pinn():
    model = dense(2, activation="tanh")

    def step(x, t):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as second:
                second.watch(x)
                with tf.GradientTape(persistent=True) as first:
                    first.watch([x, t])
                    u = model(tf.concat([x, t], 1), training=True)
                by_x, by_t = first.gradient(u, x), first.gradient(u, t)
            loss = mean_square(by_t + u * by_x - 0.01 * second.gradient(by_x, x))
        descend(tape, loss, model.trainable_variables)
        return loss

    return step, (normal(2048, 1), normal(2048, 1, seed=1)), model.variables


def laplacian():
    model = dense(3, activation="tanh")

    def step(x):
        with tf.GradientTape() as tape:
            with tf.GradientTape(persistent=True) as second:
                second.watch(x)
                with tf.GradientTape() as first:
                    first.watch(x)
                    u = model(x, training=True)
                parts = tf.unstack(first.gradient(u, x), axis=1)
            curvature = tf.add_n([second.gradient(part, x)[:, k] for k, part in enumerate(parts)])
            loss = mean_square(curvature + u[:, 0])
        descend(tape, loss, model.trainable_variables)
        return loss

    return step, (normal(2048, 3),), model.variables


class Potential(keras.Model):
    """The energy of particles, and the forces on them."""

    def __init__(self):
        super().__init__()
        self.energy = dense(48, activation="swish")

    def call(self, places, training=None):
        with tf.GradientTape() as tape:
            tape.watch(places)
            energy = self.energy(places, training=training)
        return energy, -tape.gradient(energy, places)


def forces():
    model = Potential()
    model.build((None, 48))

    def step(places, energy, force):
        with tf.GradientTape() as tape:
            found, pull = model(places, training=True)
            loss = mean_square(found - energy) + mean_square(pull - force)
        descend(tape, loss, model.trainable_variables)
        return loss

    return step, (normal(4096, 48), normal(4096, 1, seed=1), normal(4096, 48, seed=2)), model.variables


def pcgrad():
    model = convolutions(outputs=5)

    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            outputs = model(x, training=True)
            losses = [mean_square(outputs[:, k] - k) for k in range(5)]
        each = [tape.gradient(loss, model.trainable_variables) for loss in losses]
        flat = [tf.concat([tf.reshape(g, [-1]) for g in gradients], 0) for gradients in each]
        moved = list(flat)
        for i in range(5):
            for j in range(5):
                if i != j:
                    along = tf.reduce_sum(moved[i] * flat[j]) / tf.reduce_sum(tf.square(flat[j]))
                    moved[i] -= tf.minimum(along, 0.0) * flat[j]
        sizes = [math.prod(v.shape) for v in model.trainable_variables]
        for v, gradient in zip(model.trainable_variables, tf.split(tf.add_n(moved), sizes)):
            v.assign_sub(0.01 * tf.reshape(gradient, v.shape))
        return losses

    return step, (normal(16, 48, 48, 3),), model.variables


def dqn():
    online, target = convolutions(inputs=4, outputs=6), convolutions(inputs=4, outputs=6)

    def step(states, actions, rewards, following):
        best = rewards + 0.99 * tf.reduce_max(target(following, training=False), 1)
        with tf.GradientTape() as tape:
            values = tf.gather(online(states, training=True), actions, axis=1, batch_dims=1)
            loss = tf.reduce_mean(keras.losses.huber(best[:, None], values[:, None]))
        descend(tape, loss, online.trainable_variables)
        for v, other in zip(target.variables, online.variables):
            v.assign(0.99 * v + 0.01 * other)
        return loss

    args = (normal(32, 48, 48, 4), tf.range(32) % 6, normal(32, seed=1), normal(32, 48, 48, 4, seed=2))
    return step, args, [*online.variables, *target.variables]


def moco():
    queries, keys = convolutions(outputs=64), convolutions(outputs=64)
    queue, place = tf.Variable(tf.math.l2_normalize(normal(1024, 64), 1)), tf.Variable(0)

    def step(one, two):
        for v, other in zip(keys.variables, queries.variables):
            v.assign(0.99 * v + 0.01 * other)
        key = tf.stop_gradient(tf.math.l2_normalize(keys(two, training=True), 1))
        with tf.GradientTape() as tape:
            query = tf.math.l2_normalize(queries(one, training=True), 1)
            alike = tf.concat([tf.reduce_sum(query * key, 1, keepdims=True), query @ tf.transpose(queue)], 1) / 0.1
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros(32, tf.int32), alike))
        descend(tape, loss, queries.trainable_variables)
        queue.scatter_update(tf.IndexedSlices(key, place + tf.range(32)))
        place.assign((place + 32) % 1024)
        return loss

    variables = [*queries.variables, *keys.variables, queue, place]
    return step, (normal(32, 48, 48, 3), normal(32, 48, 48, 3, seed=1)), variables


def micro_batches():
    model = convolutions(outputs=10, rate=0.2)

    def step(x):
        total, losses = None, []
        for part in tf.split(x, 4):
            with tf.GradientTape() as tape:
                loss = mean_square(model(part, training=True) - 1.0)
            gradients = tape.gradient(loss, model.trainable_variables)
            total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
            losses.append(loss)
        for v, gradient in zip(model.trainable_variables, total):
            v.assign_sub(0.01 * gradient)
        return losses

    return step, (normal(96, 48, 48, 3),), model.variables


def style():
    network = keras.applications.VGG19(include_top=False, weights=None, input_shape=(192, 192, 3))
    network.trainable = False
    layers = keras.Model(network.inputs, [layer.output for layer in network.layers[1:]])
    image = tf.Variable(normal(1, 192, 192, 3))

    def gram(x):
        flat = tf.reshape(x, [-1, x.shape[-1]])
        return tf.matmul(flat, flat, transpose_a=True) / tf.cast(tf.shape(flat)[0], tf.float32)

    def step(goal):
        with tf.GradientTape() as tape:
            made = layers(image, training=False)
            loss = tf.add_n([tf.reduce_sum(tf.square(gram(x) - goal)) for x in made])
        image.assign_sub(0.1 * tape.gradient(loss, image))
        return loss

    return step, (tf.constant(0.1),), [image]


def adapter():
    frozen = [L.Dense(512, "gelu", trainable=False) for _ in range(8)]
    down, up = [L.Dense(8) for _ in frozen], [L.Dense(512) for _ in frozen]
    x = given = keras.Input((512,))
    for layer, a, b in zip(frozen, down, up):
        x = L.LayerNormalization(trainable=False)(x + layer(x) + b(a(x)))
    model = keras.Model(given, x)

    def step(x):
        with tf.GradientTape() as tape:
            loss = mean_square(model(x, training=True) - 1.0)
        descend(tape, loss, model.trainable_variables)
        return loss

    return step, (normal(2048, 512),), model.variables


class Block(tf.Module):
    def __init__(self, index):
        self.weight = tf.Variable(normal(256, 256, seed=index, scale=0.06))

    def __call__(self, x):
        return x + tf.nn.gelu(tf.math.l2_normalize(x @ self.weight, -1))


class Stack(tf.Module):
    def __init__(self):
        self.blocks = [Block(i) for i in range(24)]

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def module():
    model = Stack()

    def step(x):
        with tf.GradientTape() as tape:
            loss = mean_square(model(x))
        descend(tape, loss, model.trainable_variables)
        return loss

    return step, (normal(2048, 256),), model.variables


def recurrent():
    cell, head = L.GRUCell(256), L.Dense(1)
    cell.build((None, 64))
    head.build((None, 256))

    def step(x):
        with tf.GradientTape() as tape:
            state, losses = tf.zeros((len(x), 256)), []
            for row in tf.unstack(x, axis=1):
                out, state = cell(row, state)
                losses.append(mean_square(head(out) - 1.0))
            loss = tf.add_n(losses)
        descend(tape, loss, [*cell.trainable_variables, *head.trainable_variables])
        return loss

    return step, (normal(512, 24, 64),), [*cell.variables, *head.variables]


def branches():
    one, two = dense(64), dense(64, activation="tanh")
    flag = tf.Variable(True)

    def step(x):
        with tf.GradientTape() as tape:
            outputs = tf.cond(flag, lambda: one(x, training=True), lambda: two(x, training=True))
            loss = mean_square(outputs - 1.0)
        for v, gradient in zip([*one.variables, *two.variables], tape.gradient(loss, [*one.variables, *two.variables])):
            v.assign_sub(0.01 * gradient)
        flag.assign(tf.logical_not(flag))
        return loss

    return step, (normal(4096, 64),), [*one.variables, *two.variables]


def old_keras():
    import tf_keras

    tf_keras.utils.set_random_seed(1)
    layers = tf_keras.layers
    model = tf_keras.Sequential([layers.Input((48, 48, 3))])
    for _ in range(6):
        for layer in (layers.Conv2D(24, 3, padding="same"), layers.BatchNormalization(), layers.Activation("gelu")):
            model.add(layer)
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dropout(0.2))
    model.add(layers.Dense(10))
    optimizer = tf_keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = mean_square(model(x, training=True) - 1.0)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return step, (normal(16, 48, 48, 3),), model.variables


def vq_vae():
    encode, decode = convolutions(6, outputs=None), convolutions(6, inputs=24)
    book = tf.Variable(normal(64, 24))

    def step(x):
        with tf.GradientTape() as tape:
            z = encode(x, training=True)
            flat = tf.reshape(z, [-1, 24])
            apart = tf.reduce_sum(tf.square(flat), 1, keepdims=True) - 2.0 * tf.matmul(flat, book, transpose_b=True)
            codes = tf.argmin(apart + tf.reduce_sum(tf.square(book), 1), 1)
            found = tf.reshape(tf.gather(book, codes), tf.shape(z))
            loss = mean_square(tf.stop_gradient(found) - z) * 0.25 + mean_square(found - tf.stop_gradient(z))
            loss += mean_square(decode(z + tf.stop_gradient(found - z), training=True)[..., :3] - x)
        descend(tape, loss, [*encode.trainable_variables, *decode.trainable_variables, book])
        return loss

    return step, (normal(16, 48, 48, 3),), [*encode.variables, *decode.variables, book]


def detr():
    x = given = keras.Input((96, 96, 3))
    for channels in (16, 32, 64):
        x = L.Conv2D(channels, 3, padding="same", activation="gelu")(x)
        x = L.Conv2D(channels, 3, strides=2, padding="same", activation="gelu")(x)
    x = L.Reshape((144, 64))(x)
    queries = L.Embedding(20, 64)(keras.ops.arange(20))
    for _ in range(2):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 16)(x, x))
        x = L.LayerNormalization()(x + L.Dense(64)(L.Dense(256, "gelu")(x)))
    q = keras.ops.zeros_like(x[:, :20]) + queries
    for _ in range(2):
        q = L.LayerNormalization()(q + L.MultiHeadAttention(4, 16)(q, x))
        q = L.LayerNormalization()(q + L.Dense(64)(L.Dense(256, "gelu")(q)))
    model = keras.Model(given, [L.Dense(5)(q), L.Dense(4, "sigmoid")(q)])

    def matched(costs):
        return np.stack([linear_sum_assignment(cost)[0] for cost in costs]).astype("int32")

    def step(x, kinds, boxes):
        with tf.GradientTape() as tape:
            logits, places = model(x, training=True)
            likely = tf.gather(tf.nn.softmax(logits), kinds, axis=2, batch_dims=1)
            costs = tf.reduce_sum(tf.abs(places[:, :, None] - boxes[:, None]), -1) - likely
            rows = tf.numpy_function(matched, [tf.stop_gradient(costs)], tf.int32)
            rows = tf.ensure_shape(rows, (16, 6))
            loss = tf.reduce_mean(tf.abs(tf.gather(places, rows, axis=1, batch_dims=1) - boxes))
            chosen = tf.gather(logits, rows, axis=1, batch_dims=1)
            loss += tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(kinds, chosen))
        descend(tape, loss, model.trainable_variables)
        return loss

    kinds = tf.random.stateless_uniform((16, 6), (1, 1), 0, 4, tf.int32)
    boxes = tf.random.stateless_uniform((16, 6, 4), (1, 2))
    return step, (normal(16, 96, 96, 3), kinds, boxes), model.variables


CASES = {
    "gan": gan,
    "wgan-gp": wgan_gp,
    "r1": r1,
    "sam": sam,
    "maml": maml,
    "pinn": pinn,
    "laplacian": laplacian,
    "forces": forces,
    "pcgrad": pcgrad,
    "dqn": dqn,
    "moco": moco,
    "micro-batches": micro_batches,
    "style": style,
    "adapter": adapter,
    "module": module,
    "recurrent": recurrent,
    "cond": branches,
    "tf_keras": old_keras,
    "vq-vae": vq_vae,
    "detr": detr,
}


def steps(make, wrap):
    """Three steps of a case: the function that runs, all values, and the peak of each step."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    step, args, variables = make()
    run = wrap(step)
    values, peaks = [], []
    for _ in range(STEPS):
        with tfgc.peak() as peak:
            shown = run(*args)
        peaks.append(peak.peak_bytes - peak.held_bytes)
        values += [np.array(t) for t in tf.nest.flatten(shown)]
    return run, [*values, *(np.array(v.numpy()) for v in variables)], peaks[1:]


def quiet(step):
    return tfgc.function(step, verbose=0)


def shown(name):
    """One line of the table."""
    make = CASES[name]
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    _, expected, _ = steps(make, tf.function)
    run, values, _ = steps(make, quiet)
    apart = [i for i, (a, b) in enumerate(zip(expected, values)) if a.tobytes() != b.tobytes()]
    equal = "bit-equal" if not apart else f"value {apart[0]} of {len(values)} differs"
    assert all(np.all(np.isfinite(a)) for a in expected), name
    (now,) = run.status().traces
    least, most = (count - now.held_bytes for count in (now.needed_bytes, now.plain_bytes))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    plain, ours = max(steps(make, tf.function)[2]), max(steps(make, quiet)[2])
    return (
        f"{name:13} simulated {most / 1e6:6.1f} -> {least / 1e6:6.1f} MB "
        f"({least / most:.2f}), measured {plain / 1e6:6.1f} -> {ours / 1e6:6.1f} MB "
        f"({ours / plain:.2f}), {equal}{'; ' + now.unchanged if now.unchanged else ''}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*CASES, []])
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    for name in given.names or CASES:
        if name == "tf_keras" and importlib.util.find_spec("tf_keras") is None:
            print(f"{name:13} skipped: tf_keras is not installed", flush=True)
        elif given.here:
            print(shown(name), flush=True)
        else:
            command = [sys.executable, __file__, name, "--here"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            print(done.stdout.strip() or f"{name:13} failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)


if __name__ == "__main__":
    main()
