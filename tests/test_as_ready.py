"""`train_step(apply_gradients="as_ready")`: each weight is updated as soon as its gradient is complete."""

import functools
import statistics

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import TOLERANCE, assert_same, fresh, in_turn, mostly, noise

import tfgc

L, optimizers = keras.layers, keras.optimizers
X, IDS = noise(12, 6), tf.constant(np.random.default_rng(3).integers(0, 9, (12, 5)))
Y = noise(12, 3, seed=2)
MODES = ("compiled", "graph")


def dense():
    return keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, "relu", kernel_regularizer="l2"),
            L.BatchNormalization(),
            L.Dropout(0.3),
            L.Dense(8, activity_regularizer="l2", bias_constraint="non_neg"),
            L.Dense(3),
        ]
    )


def shared():
    """One layer in several segments, and a regularizer on it."""
    inputs = keras.Input((6,))
    twice = L.Dense(6, "tanh", kernel_regularizer="l2")
    x = twice(L.Dense(6)(twice(inputs)))
    return keras.Model(inputs, L.Dense(3)(L.Add()([x, twice(x)])))


class Tied(L.Layer):
    """A head that reads the table of an embedding, besides the gradients of the rows that were looked up."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


def words():
    inputs = keras.Input((5,), dtype="int32")
    embedding = L.Embedding(9, 4)
    x = L.GlobalAveragePooling1D()(L.LSTM(4, return_sequences=True)(embedding(inputs)))
    return keras.Model(inputs, L.Dense(3)(L.Concatenate()([x, Tied(embedding)(x), L.Embedding(9, 2)(inputs)[:, 0]])))


def frozen():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, L.Dense(3)(L.Dense(6, trainable=False)(L.Dense(6)(inputs))))
    model.layers[-1].bias.trainable = False
    return model


def nested():
    inner = keras.Sequential([keras.Input((6,)), L.Dense(6, "relu"), L.Dense(6), L.LayerNormalization()])
    inputs = keras.Input((6,))
    return keras.Model(inputs, L.Dense(3, kernel_constraint="unit_norm")(inner(inner(inputs))))


def states(optimizer, build, mode, *, when, x=X, segments=3, steps=3):
    """Those of the model and the optimizer, and the logs, after each of some steps."""
    model, optimizer, found = fresh(build), optimizer(), []
    step = tfgc.train_step(
        model,
        "mse",
        optimizer,
        plan=tfgc.plan(model, strategy="uniform", segments=segments),
        metrics=["mae"],
        run_eagerly=mode != "graph",
        apply_gradients=when,
    )
    for _ in range(steps):
        logs = step(x, Y)
        variables = [*model.variables, *optimizer.variables]
        arrays = {f"{i} {v.path}": v.numpy() for i, v in enumerate(variables)}
        found.append({**arrays, **{name: float(value) for name, value in logs.items()}})
    assert int(optimizer.iterations) == steps
    return found


@pytest.fixture
def check(monkeypatch):
    def checked(optimizer, build, mode, **settings):
        plain, ours = (states(optimizer, build, mode, when=when, **settings) for when in ("at_end", "as_ready"))
        assert_same(plain, ours, TOLERANCE["float32"], mode)
        moved = [name for name in plain[0] if "kernel" in name and (plain[0][name] != plain[-1][name]).any()]
        assert moved, "nothing is proved"

    return checked


OPTIMIZERS = {
    "sgd": functools.partial(optimizers.SGD, 0.1, momentum=0.9, clipvalue=0.01),
    "adam": functools.partial(optimizers.Adam, optimizers.schedules.ExponentialDecay(0.01, 1, 0.5), clipnorm=0.1),
    "adamw": functools.partial(optimizers.AdamW, 0.01, weight_decay=0.1, loss_scale_factor=8.0),
    "rmsprop": functools.partial(optimizers.RMSprop, 0.01, centered=True),
    "adafactor": optimizers.Adafactor,
}


@pytest.mark.parametrize(("optimizer", "mode"), in_turn(OPTIMIZERS, MODES))
def test_steps_equal_those_that_update_at_the_end(check, optimizer, mode):
    check(OPTIMIZERS[optimizer], dense, mode)


@pytest.mark.parametrize(("build", "mode"), in_turn([shared, frozen, nested], MODES, first=1))
def test_models_whose_weights_are_read_in_several_places(check, build, mode):
    check(OPTIMIZERS["adam"], build, mode)


@pytest.mark.parametrize("mode", mostly("graph", modes=MODES))
def test_sparse_gradients_and_averaged_weights(check, mode):
    average = functools.partial(optimizers.SGD, 0.1, use_ema=True, ema_overwrite_frequency=2)
    check(average, words, mode, x=IDS, segments=4)


class Checked(L.Dense):
    def call(self, x):
        return super().call(tf.debugging.check_numerics(x, "input"))


def checked():
    """The penalty of the first weight has an effect, which those of the layers come after."""

    def penalty(weight):
        return 0.01 * tf.reduce_sum(tf.square(tf.debugging.check_numerics(weight, "weight")))

    layers = [Checked(8, kernel_regularizer=penalty), Checked(8), Checked(8), L.Dense(3)]
    return keras.Sequential([keras.Input((6,)), *layers])


def test_penalties_with_effects(check):
    check(OPTIMIZERS["sgd"], checked, "graph")


class Unused(L.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), name="scale", initializer="ones")
        self.rest = self.add_weight(shape=(1,), name="rest")

    def call(self, x):
        return x * self.scale


@pytest.mark.parametrize("run_eagerly", [True, False], ids=["compiled", "graph"])
def test_keras_warns_once_a_step_of_weights_without_a_gradient(run_eagerly):
    model = fresh(lambda: keras.Sequential([keras.Input((6,)), L.Dense(6), Unused(), L.Dense(3)]))
    step = tfgc.train_step(model, "mse", "adam", run_eagerly=run_eagerly, apply_gradients="as_ready")
    with pytest.warns(UserWarning, match="Gradients do not exist for variables .*rest'.* when") as warned:
        step(X, Y)
    assert len(warned) == 1


def test_a_loss_without_gradients_is_keras_own_error():
    model = fresh(lambda: keras.Sequential([keras.Input((6,)), L.Dense(3)]))
    step = tfgc.train_step(model, lambda y, p: tf.stop_gradient(p), "sgd", apply_gradients="as_ready")
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        step(X, Y)


class Counting(optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        return super().apply(grads, trainable_variables)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"apply_gradients": "now"}, "'now' is unknown: give 'at_end' or 'as_ready'"),
        ({"micro_batches": 2}, "cannot be combined with micro_batches=2: .* the last slice.* Use a plan with slices"),
        ({"jit_compile": True}, "cannot be combined with jit_compile=True: XLA chooses .* Leave one of them out"),
        ({"on_oom": "replan"}, "cannot be combined with on_oom='replan': .* put back. Leave one of them out"),
        (
            {"optimizer": optimizers.SGD(global_clipnorm=2.0)},
            r"global_clipnorm=2\.0 of SGD .* Use clipnorm=.* or leave",
        ),
        (
            {"optimizer": optimizers.LossScaleOptimizer(optimizers.SGD())},
            "LossScaleOptimizer .* SGD, with loss_scale_factor=, or leave",
        ),
        ({"optimizer": optimizers.Adam(gradient_accumulation_steps=4)}, "gradient_accumulation_steps=4 of Adam keeps"),
        (
            {"optimizer": optimizers.SGD(use_ema=True)},
            "use_ema=True of SGD .* 'sequential/dense_1/bias' has a constraint",
        ),
        (
            {"optimizer": optimizers.SGD(lambda: 0.1)},
            "learning_rate of SGD is a Python function, .*LearningRateSchedule",
        ),
        ({"optimizer": "nadam"}, "Nadam has its own _backend_update_step, which takes all gradients"),
        ({"optimizer": Counting()}, "Counting has its own apply, which takes all gradients"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options, message):
    with pytest.raises(tfgc.OptionError, match=f"^apply_gradients=.*{message}"):
        tfgc.train_step(fresh(dense), "mse", **{"optimizer": "sgd", "apply_gradients": "as_ready", **options})


def test_replicas_are_refused():
    model = fresh(dense)
    with (
        tf.distribute.OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(tfgc.OptionError, match=r"cannot be combined with tf\.distribute: replicas"),
    ):
        tfgc.train_step(model, "mse", "sgd", apply_gradients="as_ready")


def test_the_order_of_updates_computes_nothing_that_is_not_needed():
    model = fresh(lambda: keras.Sequential([keras.Input((8, 8, 2)), L.Conv2D(4, 3), L.Flatten(), L.Dense(3)]))
    plan = tfgc.plan(model, strategy="keep_all")
    step = tfgc.train_step(model, "mse", "sgd", plan=plan, run_eagerly=True, apply_gradients="as_ready")
    graph = tf.function(step).get_concrete_function(noise(12, 8, 8, 2), Y).graph
    waiting, needed = [*graph.control_outputs, *(t.op for t in graph.outputs)], set()
    while waiting:
        op = waiting.pop()
        if op.name not in needed:
            needed.add(op.name)
            waiting += [*op.control_inputs, *(x.op for x in op.inputs)]
    (convolution,) = (op for op in graph.get_operations() if op.type == "Conv2DBackpropInput")
    assert convolution.name not in needed  # It reads the kernel, too, but nobody asks for the gradient of the input.
    updates = [op for op in graph.get_operations() if op.type == "AssignSubVariableOp" and op.name in needed]
    assert any(other.type == "MatMul" for op in updates for other in op.control_inputs)


SIDE = 1500


def layers_at_the_peak(run_eagerly, regularizer, when):
    """The peak of a step of eight large layers above what stays, in weights; chunks are up to twice as large."""
    layers = [L.Dense(SIDE, "relu", kernel_regularizer=regularizer) for _ in range(8)]
    model = keras.Sequential([keras.Input((SIDE,)), *layers])
    plan = tfgc.plan(model, strategy="uniform", segments=8)
    step = tfgc.train_step(model, "mse", "sgd", plan=plan, run_eagerly=run_eagerly, apply_gradients=when)
    x = noise(8, SIDE)
    of = statistics.median if regularizer else max  # TensorFlow decides when the gradients of regularizers run.
    return memory.peak(step, x, x, steps=5, of=of) / (4 * SIDE**2)


@pytest.mark.gate
@pytest.mark.parametrize(("run_eagerly", "regularizer"), [(True, None), (False, "l2")], ids=["compiled", "graph"])
def test_a_gradient_or_two_are_in_memory_in_place_of_all(run_eagerly, regularizer):
    """In graphs TensorFlow decides when the gradients of regularizers run: mostly 2.9 weights, once 6.3 beside others.

    So the median of the steps counts with them, and the most of all steps without.
    """
    ways = "at_end", "as_ready"
    at_end, as_ready = (memory.alone(layers_at_the_peak, run_eagerly, regularizer, when) for when in ways)
    assert at_end > 8
    assert as_ready < (4 if run_eagerly else 5)


@pytest.mark.gate
def test_no_weight_is_copied_in_a_graph():
    assert memory.alone(layers_at_the_peak, False, None, "as_ready") < 2
