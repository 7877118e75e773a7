"""Plans follow what a model trains: layers that are frozen and thawed, other optimizers and losses, larger inputs."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import in_turn, mostly, noise

import tfgc
from tfgc._framework import fit_loop
from tfgc._planning import trace_plans
from tfgc._training.training_state import TrainingState

L = keras.layers
X, Y = noise(8, 16, 16, 3), noise(8, 4, seed=2)


class Blocks(keras.Model):
    """The layers of `chain`, called in a loop."""

    def __init__(self):
        super().__init__(name="net")
        self.parts = [made() for made in parts()]

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def parts():
    """A deep base, and a head of two layers."""
    base = [lambda: L.Conv2D(8, 3, padding="same", activation="gelu")] * 5
    return [*base, L.GlobalAveragePooling2D, lambda: L.Dense(4)]


def chain():
    return keras.Sequential([keras.Input((16, 16, 3)), *(made() for made in parts())], name="net")


def built(kind, trainable=True):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    model = kind()
    model(X)
    set_base(model, trainable)
    model.compile("sgd", "mse")
    return model


def set_base(model, trainable):
    for layer in (model.parts if isinstance(model, Blocks) else model.layers)[:-1]:
        layer.trainable = trainable


def fit(model, **options):
    model.fit(X, Y, batch_size=8, verbose=0, **options)


def latest(model):
    return tfgc.status(model).plans[-1]


@pytest.fixture
def planned(monkeypatch):
    """One entry for each time that a step is planned."""
    times = []
    original = trace_plans.TracePlans.__init__
    monkeypatch.setattr(trace_plans.TracePlans, "__init__", lambda *a, **k: times.append(1) or original(*a, **k))
    return times


# Functional, and without a graph of layers: by turns in the fast suite.
KINDS = [chain, Blocks]
BY_NODES, BY_CALLS = (pytest.mark.parametrize("kind", mostly(kind, modes=KINDS)) for kind in KINDS)


@BY_NODES
def test_a_model_is_planned_again_when_its_base_is_thawed(kind):
    plain, model = built(kind, trainable=False), tfgc.enable(built(kind, trainable=False), verbose=0)
    with pytest.warns(tfgc.NothingSavedWarning):
        fit(model)
    fit(plain)
    for one in (plain, model):
        set_base(one, True)
        one.compile("sgd", "mse")
        fit(one)
    now = latest(model)
    assert now.unchanged is None
    assert now.predicted_bytes < 0.7 * now.plain_bytes
    for expected, found in zip(plain.weights, model.weights):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@BY_CALLS
def test_a_budget_holds_for_a_base_that_is_thawed(kind):
    needed = tfgc.estimate(built(kind), example=X).needed_bytes
    model = tfgc.enable(built(kind, trainable=False), budget=int(0.7 * needed), verbose=0)
    fit(model)
    assert latest(model).overhead == 0.0
    set_base(model, True)
    model.compile("sgd", "mse")
    fit(model)
    assert latest(model).overhead > 0.0
    assert latest(model).predicted_bytes <= 0.7 * needed


@BY_NODES
def test_a_share_that_a_frozen_base_makes_too_small_is_one_of_the_step_before(kind):
    def least(model):
        with pytest.raises(tfgc.InfeasibleBudgetError) as error:
            fit(tfgc.enable(model, budget=1000, verbose=0))
        fit(tfgc.enable(model, budget="100%", verbose=0))
        return error.value.least / latest(model).plain_bytes

    share = least(built(kind)) + 0.02
    frozen = built(kind, trainable=False)
    assert least(frozen) > share
    model = tfgc.enable(built(kind), budget=share, verbose=0)
    fit(model)
    before = latest(model)
    set_base(model, False)
    model.compile("sgd", "mse")
    fit(model)
    assert latest(model) != before
    assert latest(model).predicted_bytes <= share * before.plain_bytes
    with pytest.raises(tfgc.InfeasibleBudgetError):
        fit(tfgc.enable(frozen, budget=share, verbose=0))


@pytest.mark.parametrize(("kind", "compiled"), in_turn(KINDS, [("adam", "mse"), ("sgd", "mae")]))
def test_another_optimizer_or_loss_is_planned_for(kind, compiled, planned):
    model = tfgc.enable(built(kind), budget="70%", verbose=0)
    fit(model)
    before = latest(model)
    model.compile(*compiled)
    fit(model)
    assert len(planned) == 2
    slots = 2 * sum(v.value.shape.num_elements() * 4 for v in model.trainable_variables) if "adam" in compiled else 0
    assert latest(model).plain_bytes - before.plain_bytes == pytest.approx(slots, abs=2_000)


@BY_NODES
def test_an_update_that_holds_more_is_planned_for(kind, planned):
    """One that clips by the norm of all gradients has no more slots, and keeps all gradients until the last one."""
    model = built(kind)
    model.compile(keras.optimizers.Adam(), "mse")
    tfgc.enable(model, budget="90%", verbose=0)
    fit(model)
    model.compile(keras.optimizers.Adam(global_clipnorm=1.0), "mse")
    fit(model)
    fresh = built(kind)
    fresh.compile(keras.optimizers.Adam(global_clipnorm=1.0), "mse")
    fit(tfgc.enable(fresh, budget="90%", verbose=0))
    assert len(planned) == 3
    assert latest(model).plain_bytes == latest(fresh).plain_bytes


@BY_NODES
def test_what_is_frozen_by_turns_has_two_plans(kind, planned):
    """As a discriminator is, in a loop in Python."""
    budget = int(0.7 * tfgc.estimate(built(kind), example=X).needed_bytes)
    model = tfgc.enable(built(kind), budget=budget, verbose=0)
    plain = built(kind)
    for step in range(6):
        for one in (model, plain):
            set_base(one, step % 2 == 0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((one(X, training=True) - Y) ** 2)
            gradients = tape.gradient(loss, one.trainable_variables)
            for variable, gradient in zip(one.trainable_variables, gradients):
                variable.assign_sub(0.1 * gradient)
    assert len(planned) == 2
    for expected, found in zip(plain.weights, model.weights):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


class Tower(keras.Model):
    """Blocks of products on sequences of any length."""

    def __init__(self, dense=L.Dense):
        super().__init__(name="tower")
        self.parts = [dense(32, activation="gelu") for _ in range(6)]

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def step(model, x, **options):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True, **options) ** 2)
    return tape.gradient(loss, model.trainable_variables)


def test_longer_inputs_of_a_model_without_a_graph_are_planned_again_for_a_budget(planned):
    model, short, long = Tower(), noise(8, 4, 32), noise(8, 64, 32)
    model(short)
    budget = int(1.1 * tfgc.estimate(model, example=short).needed_bytes)
    tfgc.enable(model, budget=budget, verbose=0)
    for x in (short, short, short[:, :2]):
        step(model, x)
    assert len(planned) <= 2
    with pytest.raises(tfgc.InfeasibleBudgetError):
        step(model, long)


def test_longer_inputs_may_save_something_where_short_ones_did_not():
    model, short, long = Tower(), noise(8, 1, 32), noise(8, 256, 32)
    model(short)
    tfgc.enable(model, verbose=0)
    with pytest.warns(tfgc.NothingSavedWarning):
        step(model, short)
    assert latest(model).unchanged is not None
    step(model, long)
    assert latest(model).unchanged is None


class Messages(L.Layer):
    """Adds to each atom what its bonds carry."""

    def call(self, inputs):
        atoms, bonds, pairs = inputs
        return atoms + tf.math.unsorted_segment_sum(bonds * tf.gather(atoms, pairs), pairs, tf.shape(atoms)[0])

    def compute_output_shape(self, shapes):
        return shapes[0]


def test_more_bonds_of_as_many_atoms_are_planned_again_for_a_budget(planned):
    atoms, bonds, pairs = keras.Input((16,)), keras.Input((16,)), keras.Input((), dtype="int32")
    x = bonds
    for _ in range(4):
        x = L.Dense(64, activation="gelu")(x)
    outputs = L.Dense(1)(Messages()([atoms, L.Dense(16)(x), pairs]))
    model = tfgc.enable(keras.Model([atoms, bonds, pairs], outputs), budget="80%", verbose=0)
    for atoms, count in ((400, 600), (400, 300), (400, 900), (500, 800), (400, 900), (500, 800)):
        inputs = [noise(atoms, 16), noise(count, 16), tf.range(count) % 400]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs, training=True))
        assert all(g is not None for g in tape.gradient(loss, model.trainable_variables))
    assert len(planned) == 3  # for the first, for more bonds, and for as many with more atoms


class Pair(Tower):
    """Two sequences, each of any length."""

    def call(self, inputs):
        one, other = (super(Pair, self).call(x) for x in inputs)
        return tf.reduce_sum(one) + tf.reduce_sum(other)


@dataclasses.dataclass
class Scaled:
    """A loss that compares by value, so that it has no hash."""

    by: float = 2.0

    def __call__(self, y, p):
        return self.by * tf.reduce_mean((y - p) ** 2)


class Deep(keras.Model):
    """As deep as it is asked for."""

    def __init__(self):
        super().__init__()
        self.parts, self.head = [L.Dense(64, activation="gelu") for _ in range(8)], L.Dense(1)

    def call(self, x, depth=2, extra=None, training=None):
        for part in self.parts[:depth]:
            x = part(x)
        return self.head(x if extra is None else x + sum(self.parts[0](one) for one in extra))


def deep(**options):
    model = Deep()
    model(DEEP, depth=8)
    return tfgc.enable(model, verbose=0, **options)


DEEP = noise(64, 32, 64)
KINDS_OF_CALLS = [{"depth": 8}, pytest.param({"extra": [DEEP] * 3}, marks=pytest.mark.slow)]


@pytest.mark.parametrize("options", KINDS_OF_CALLS, ids=["depth", "inputs"])
def test_a_call_with_other_arguments_is_planned_for_within_a_budget(options, planned):
    """The plan of the first call ran those that are larger, and its promise with it."""
    model, alone = deep(budget="90%"), deep(budget="90%")
    step(alone, DEEP, **options)
    for _ in range(2):
        step(model, DEEP)
        small = latest(model)
        step(model, DEEP, **options)
        assert latest(model).plain_bytes == latest(alone).plain_bytes > 1.3 * small.plain_bytes
    assert len(planned) == 3


class Activated(Deep):
    """Runs what it is given, which is no tensor."""

    def call(self, x, act=None, config=None, training=None):
        for part in self.parts:
            x = act(part(x)) if act else part(x)
            x = x * config.by if config else x
        return self.head(x)


OBJECTS = {"function": {"act": tf.nn.relu}, "object": {"config": Scaled()}}


@pytest.mark.parametrize(("kind", "budget"), in_turn(OBJECTS, [None, "90%"]))
def test_an_argument_that_is_no_tensor_is_handed_on(kind, budget, planned):
    keras.config.set_dtype_policy("float64")
    plain, model, x = Activated(), Activated(), tf.cast(DEEP, "float64")
    plain(x), model(x)
    model.set_weights(plain.get_weights())
    tfgc.enable(model, budget=budget, verbose=0)
    for _ in range(2):
        expected, found = (step(one, x, **OBJECTS[kind]) for one in (plain, model))
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-12)
    assert len(planned) == (1 if kind == "function" else 2)  # nobody knows whether an object is as before
    assert latest(model).unchanged is None


@pytest.mark.parametrize("budget", mostly("90%", modes=[None, "90%"]))
def test_lengths_that_take_turns_are_planned_for_together(budget, planned):
    model = Pair()
    long, short = noise(8, 60, 32), noise(8, 20, 32)
    model((long, short))
    tfgc.enable(model, budget=budget, verbose=0)
    plain = []
    for inputs in ((long, short), (short, long)) * 2:
        step(model, inputs)
        plain.append(latest(model).plain_bytes)
    assert len(planned) <= 2


def test_the_stack_is_not_searched_where_the_batch_is_known(monkeypatch):
    model = tfgc.enable(built(chain), verbose=0)
    step(model, X)
    monkeypatch.setattr(fit_loop, "batch_size", lambda: pytest.fail("looked for the running fit"))
    step(model, X)


@BY_CALLS
def test_a_loss_without_a_hash(kind, planned):
    model = tfgc.enable(built(kind), verbose=0)
    for loss in (Scaled(), Scaled(3.0)):
        model.compile("sgd", loss)
        fit(model)
        fit(model)
    assert len(planned) == 2


def test_which_output_has_a_loss_is_part_of_how_a_model_trains():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, {name: L.Dense(2, name=name)(inputs) for name in ("one", "two")})
    state, states = TrainingState(model), []
    for loss in ({"one": "mse"}, {"two": "mse"}, {"one": "mse"}):
        model.compile("sgd", loss)
        states.append(state.now)
    assert states[0] == states[2] != states[1]
    assert hash(states[0]) == hash(states[2])


@BY_CALLS
def test_what_is_frozen_by_turns_is_traced_once_each(kind):
    traced = []

    class Counting(L.Dense):
        def call(self, x):
            traced.append(1)
            return super().call(x)

    model = Tower(Counting)
    if kind is chain:
        model = keras.Sequential([keras.Input((32,)), *model.parts])
    x, counts = noise(64, 32), []
    model(x)
    tfgc.enable(model, verbose=0)
    for turn in range(8):
        model.layers[0].trainable = turn % 2 == 0
        step(model, x)
        counts.append(len(traced))
    run_op_by_op = counts[5] - counts[4], counts[4] - counts[3]
    assert [counts[7] - counts[6], counts[6] - counts[5]] == [*run_op_by_op]
    assert max(run_op_by_op) <= 6
