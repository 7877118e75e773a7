"""Models with a custom training step that hold the enabled model: no trace from before is used again."""

import logging
import re
import warnings

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, mostly, noise

import tfgc
from tfgc._training import layer_calls

L = keras.layers
X = noise(128, 6)


def net(name="net", depth=4):
    layers = [L.Dense(6, activation="tanh") for _ in range(depth)]
    return keras.Sequential([keras.Input((6,)), *layers], name=name)


def square(model, x):
    return tf.reduce_mean(model(x, training=True) ** 2)


class Outer(keras.Model):
    """Trains what `part()` gives; how that is held is up to those below."""

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            loss = square(self.part(), x)
        weights = self.part().trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"square": loss}


class ByAttribute(Outer):
    def __init__(self, inner):
        super().__init__()
        self.net = inner

    def part(self):
        return self.net


class InList(Outer):
    def __init__(self, inner):
        super().__init__()
        self.nets = [{"a": inner}]

    def part(self):
        return self.nets[0]["a"]


class InModel(Outer):
    def __init__(self, inner):
        super().__init__()
        self.held = ByAttribute(inner)

    def part(self):
        return self.held.net


class Wrapper:
    def __init__(self, inner):
        self.inner = inner


class InWrapper(Outer):
    """Keras does not know that it holds anything."""

    def __init__(self, inner):
        super().__init__()
        self.wrapper = Wrapper(inner)

    def part(self):
        return self.wrapper.inner


class InClosure(Outer):
    def __init__(self, inner):
        super().__init__()
        self.part = lambda: inner


HOLDERS = (ByAttribute, InList, InModel, InWrapper, InClosure)


def functions_in(trace):
    """How often each kind of operation stands in a trace and in all that it calls."""
    graph = trace.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return [node.op for node in nodes]


def tanhs_of_the_step(model):
    """How often the compiled training step of a model runs tanh: twice for each that is recomputed."""
    kind = type(tf.function(square))
    guard = vars(model).get("make_train_function")
    function = model.train_function if guard is None else guard.__self__._function
    cells = [cell.cell_contents for cell in function.__closure__]
    found = [cell for cell in cells if isinstance(cell, kind) and cell.name == "multi_step_on_iterator"]
    (trace,) = found[0]._function_cache.values()
    return functions_in(trace).count("Tanh")


def recomputes(model):
    return tanhs_of_the_step(model) > 4


def fit(model):
    return model.fit(X, batch_size=64, verbose=0).history["square"]


@pytest.mark.parametrize(
    "holder", [pytest.param(h, marks=[] if h in (InList, InClosure) else pytest.mark.slow) for h in HOLDERS]
)
def test_a_part_is_enabled_and_disabled_in_a_model_that_has_trained(holder):
    model = fresh(lambda: holder(net()))
    model.compile("sgd")
    fit(model)
    assert not recomputes(model)
    tfgc.enable(model.part(), tfgc.plan(model.part(), strategy="uniform", segments=2))
    fit(model)
    assert recomputes(model)
    tfgc.disable(model.part())
    fit(model)
    assert tanhs_of_the_step(model) == 4


def test_another_plan_and_chosen_layers_of_a_part_take_effect():
    model = fresh(lambda: ByAttribute(net()))
    model.compile("sgd")
    tfgc.enable(model.net, strategy="uniform")
    fit(model)
    tfgc.enable(model.net, strategy="keep_all")
    fit(model)
    assert not recomputes(model)
    tfgc.enable(model.net, layers=[model.net.layers[1]])
    fit(model)
    assert tanhs_of_the_step(model) == 5


@pytest.mark.gate
def test_training_goes_on_as_it_would_have():
    def losses(enabled):
        model = fresh(lambda: ByAttribute(net()))
        model.compile("adam")
        record = fit(model)
        if enabled:
            tfgc.enable(model.net, strategy="uniform")
        record += fit(model)
        if enabled:
            tfgc.disable(model.net)
        return record + fit(model)

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)


@pytest.mark.gate
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"steps_per_execution": 2}, marks=pytest.mark.slow),
        {"jit_compile": True},
        pytest.param({"run_eagerly": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_in_every_kind_of_fit(settings):
    model = fresh(lambda: ByAttribute(net()))
    model.compile("sgd", **settings)
    first = fit(model)
    before = model.train_function
    tfgc.enable(model.net, strategy="uniform")
    # What runs eagerly has traced nothing.
    assert (model.train_function is before) == ("run_eagerly" in settings)
    assert fit(model) < first


def test_a_callback_enables_in_the_midst_of_fit():
    model = fresh(net)
    model.compile("sgd", "mse")
    seen = []

    def on_batch(batch, logs=None):
        if batch == 1:
            tfgc.enable(model, strategy="uniform")
        seen.append(batch)

    switch = keras.callbacks.LambdaCallback(on_train_batch_end=on_batch)
    model.fit(X, X, batch_size=32, verbose=0, callbacks=[switch])
    assert seen == [0, 1, 2, 3]
    assert recomputes(model)


def test_evaluation_and_prediction_are_traced_again():
    class Evaluates(ByAttribute):
        def test_step(self, data):
            return {"loss": square(self.net, data)}

        def predict_step(self, data):
            return self.net(data[0] if isinstance(data, tuple) else data, training=False)

    model = fresh(lambda: Evaluates(net()))
    model.compile("sgd")
    expected = model.predict(X, verbose=0)
    model.evaluate(X, verbose=0)
    before = model.test_function, model.predict_function
    tfgc.enable(model.net, strategy="uniform")
    assert model.test_function is not before[0]
    assert model.predict_function is not before[1]
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-7)
    # What never ran is not made.
    assert fresh(lambda: ByAttribute(net())).train_function is None


@pytest.mark.gate
def test_a_student_is_enabled_in_keras_own_distiller():
    distillation = pytest.importorskip("keras.distillation")

    def build():
        teacher, student = net("teacher"), net("student")
        model = distillation.Distiller(
            teacher=teacher, student=student, distillation_losses=distillation.LogitsDistillation()
        )
        model.compile("sgd", loss="mse")
        return model

    def losses(enabled):
        model = fresh(build)
        record = model.fit(X, X, verbose=0).history["loss"]
        plain = tanhs_of_the_step(model)
        if enabled:
            tfgc.enable(model.student, strategy="uniform")
        record += model.fit(X, X, verbose=0).history["loss"]
        assert (tanhs_of_the_step(model) > plain) is enabled
        return record

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)


class Loop:
    """A custom training loop, as a class."""

    def __init__(self, model):
        self.model = model

    @tf.function
    def step(self, x):
        with tf.GradientTape() as tape:
            loss = square(self.model, x)
        return tape.gradient(loss, self.model.trainable_variables)


@pytest.mark.gate
def test_a_users_function_is_named():
    model = fresh(net)

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = square(model, x)
        return tape.gradient(loss, model.trainable_variables)

    @tf.function
    def infer(x):
        return model(x, training=False)

    train(X)
    infer(X)
    line = train.python_function.__code__.co_firstlineno
    told = rf"^tfgc.enable of 'net' does not reach tf.function 'train' \(test_outer_models.py, line {line}\), which "
    told += r"trained with it before: TensorFlow keeps using the old trace. "
    told += r"Use tf.function\(train.python_function\) from now on$"
    with pytest.warns(tfgc.StaleTraceWarning, match=told) as caught:
        tfgc.enable(model, strategy="uniform")
    assert caught[0].filename == __file__
    train = tf.function(train.python_function)
    train(X)
    (trace,) = train._function_cache.values()
    assert functions_in(trace).count("Tanh") > 4
    with pytest.warns(tfgc.StaleTraceWarning, match=r"^tfgc.disable of 'net' does not reach tf.function 'train'"):
        tfgc.disable(model)


def test_methods_and_functions_differentiated_from_outside_are_named():
    model = fresh(net)
    loop, forward = Loop(model), tf.function(lambda x: square(model, x))
    loop.step(X)
    with tf.GradientTape() as tape:
        loss = forward(X)
    tape.gradient(loss, model.trainable_variables)
    with pytest.warns(tfgc.StaleTraceWarning) as caught:
        tfgc.enable(model, strategy="uniform")
    (message,) = [str(warning.message) for warning in caught]
    assert "tf.function 'step' (test_outer_models.py, line " in message
    assert "tf.function '<lambda>' (test_outer_models.py, line " in message
    again = tf.function(loop.step.python_function)
    again(X)
    (trace,) = again._function_cache.values()
    assert functions_in(trace).count("Tanh") > 4


def test_no_function_is_named_that_has_nothing_to_do_with_it():
    """Of another model, of inference, not yet traced, thrown away, or tfgc's own."""
    model, other = fresh(net), net("other")
    plain = tf.function(lambda x: model(x))
    plain(X)
    loops = Loop(other), Loop(model), Loop(model)
    loops[0].step(X)
    loops[1].step(X)
    loops = (loops[0], loops[2])
    step = tfgc.train_step(model, "mse", "sgd", plan=tfgc.plan(model, strategy="uniform"))
    step(X, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfgc.enable(model, strategy="uniform")
        tfgc.disable(model)


class Holder(L.Layer):
    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, x, training=None):
        return 2.0 * self.inner(x, training=training)


class Tower(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.holder = Holder(inner, name="holder")
        self.head = L.Dense(6, name="head")

    def call(self, x, training=None):
        return self.head(self.holder(x, training=training))


@pytest.mark.parametrize(("chosen", "mode"), in_turn(["holder", "head"], ("compiled", "eager")))
def test_an_inner_model_is_enabled_after_a_layer_of_the_outer_one(chosen, mode):
    """Compiled segments of the outer model that were traced with the plain inner one are traced again."""
    model = fresh(lambda: Tower(net("inner")))
    model(X)

    def gradients():
        with tf.GradientTape() as tape:
            loss = square(model, X)
        return [g.numpy() for g in tape.gradient(loss, [v.value for v in model.trainable_variables])]

    expected = gradients()
    tfgc.enable(model, layers=[chosen])
    gradients()
    calls = []
    tfgc.enable(model.holder.inner, strategy="uniform")
    run = vars(model.holder.inner)["call"]

    def seen(*args, **kwargs):
        calls.append(1)
        return run(*args, **kwargs)

    seen.is_patched_call = True
    model.holder.inner.call = seen
    for a, b in zip(expected, gradients(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert calls
    tfgc.disable(model.holder.inner)
    before = len(calls)
    for a, b in zip(expected, gradients(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert len(calls) == before


def test_the_plan_of_a_whole_covers_a_part_that_is_enabled_afterwards():
    inner = net("inner")
    inputs = keras.Input((6,))
    model = keras.Model(inputs, L.Dense(6)(inner(inputs)))
    model.compile("sgd", "mse")
    tfgc.enable(model, strategy="keep_all")
    model.fit(X, X, verbose=0)
    tfgc.enable(inner, strategy="uniform")
    model.fit(X, X, verbose=0)
    assert tanhs_of_the_step(model) == 4
    tfgc.disable(model)
    model.fit(X, X, verbose=0)
    assert tanhs_of_the_step(model) == 4, "disabling a model disables its parts"


LATER = {
    "a plan": lambda part: tfgc.enable(part, tfgc.plan(part, strategy="uniform", segments=2)),
    "planned later": lambda part: tfgc.enable(part, strategy="uniform", verbose=0),
    "layers": lambda part: tfgc.enable(part, layers=L.Dense),
}


class Pair(keras.Model):
    """Two networks that are called one after the other."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            keras.Sequential([keras.Input((6,)), *(L.Dense(n, activation="gelu") for n in (64, 6) * 3)]) for _ in "ab"
        )

    def call(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize("how", mostly("a plan", "layers", modes=LATER))
def test_a_part_that_is_enabled_after_its_whole_keeps_its_plan(how):
    large = noise(256, 6)

    def train(enabled):
        model = fresh(Pair)
        model(large)
        if enabled:
            tfgc.enable(model, verbose=0)
            LATER[how](model.second)
            before = vars(model.second).get("call"), [vars(layer).get("call") for layer in model.second.layers]
        found = []
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = square(model, large)
            weights = [v.value for v in model.trainable_variables]
            found += [loss, *tape.gradient(loss, weights)]
            if enabled:
                assert tfgc.status(model).enabled
                assert tfgc.status(model.second).enabled
                now = vars(model.second).get("call"), [vars(layer).get("call") for layer in model.second.layers]
                assert now == before
            model.first.trainable = False  # a state with a plan of its own
        return model, found

    for a, b in zip(train(False)[1], (ours := train(True))[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    model = ours[0]
    tfgc.disable(model)
    assert not tfgc.status(model.second).enabled, "disabling a model disables its parts"


@pytest.mark.parametrize("undo", [lambda outer: tfgc.enable(outer, strategy="keep_all"), tfgc.disable, None])
def test_nothing_of_a_part_is_left_where_the_whole_is_enabled_or_disabled(undo):
    inner = Tower(net("inner"))
    inner(X)
    inner.compile("sgd", "mse")
    tfgc.enable(inner, tfgc.plan(inner, example=X), on_oom="replan")
    expected = str(tfgc.status(inner))
    assert "'optimal'" in expected
    inputs = keras.Input((6,))
    outer = keras.Model(inputs, Holder(inner)(inputs))
    if undo is None:  # puts back what it found
        with layer_calls.restored_afterwards(outer):
            assert not tfgc.status(inner).enabled
        assert str(tfgc.status(inner)) == expected
    else:
        undo(outer)
        assert str(tfgc.status(inner)) == f"{inner.name}: not enabled"
        assert "make_train_function" not in vars(inner)


def test_the_error_for_a_model_without_a_graph_says_what_to_do():
    model = InList(net())
    for call in (tfgc.plan, lambda m: tfgc.split(m, 2)):
        with pytest.raises(tfgc.UnsupportedModelError) as caught:
            call(model)
        text = (
            f"{model.name!r} is a subclassed model (InList), which has no graph of nodes to cut into segments. "
            "tfgc.enable(model) plans its step at the first batch; to choose layers: tfgc.enable(model, layers=[...])"
        )
        of_step = ". Or plan its step: give a batch, or its specs, as example=(x, y)"
        assert str(caught.value) in (text, text + of_step)
    with pytest.raises(tfgc.UnsupportedModelError, match=r"tfgc.enable\(model\) plans its first step"):
        tfgc.train_step(model, "mse", "sgd")


@pytest.mark.filterwarnings("ignore::tfgc.NothingSavedWarning", "ignore:the train_step of 'positive' cannot be traced")
def test_a_step_in_a_function_of_the_users_is_planned_outside_of_autograph():
    """AutoGraph rewrites what a `tf.function` calls, and warned that it cannot rewrite the planner."""

    class Positive(keras.Model):
        """Its step needs AutoGraph: a branch by a tensor's value."""

        def __init__(self):
            super().__init__()
            self.net = net()

        def call(self, x, training=None):
            return self.net(x, training=training)

        def train_step(self, x):
            with tf.GradientTape() as tape:
                distance = tf.reduce_sum(self(x, training=True))
                if distance < 0:
                    distance = -distance
            gradients = tape.gradient(distance, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"distance": distance}

    def distances(enabled):
        model = fresh(Positive)
        model(X)
        model.compile(keras.optimizers.SGD(0.01))
        model.optimizer.build(model.trainable_variables)
        if enabled:
            tfgc.enable(model, verbose=0)
        step = tf.function(lambda x: model.train_step(x)["distance"])
        return [float(step(tf.constant(X))) for _ in range(2)]

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    try:
        found = distances(enabled=True)
    finally:
        tf.get_logger().removeHandler(handler)
    assert said == []
    np.testing.assert_allclose(found, distances(enabled=False), rtol=1e-5)


def peaks_of_an_outer_model():
    """Of a step before its part is enabled, then, after the part is disabled, and with the part as one block."""
    layers = [keras.layers.Conv2D(8, 3, padding="same", activation="tanh") for _ in range(16)]
    model = ByAttribute(keras.Sequential([keras.Input((32, 32, 8)), *layers]))
    x = tf.random.stateless_normal((16, 32, 32, 8), (1, 2))
    model.compile("sgd")

    def least():
        """Gradients of kernels that a busy thread computes late keep what they read."""
        return min(memory.peak(model.train_on_batch, x, steps=1) for _ in range(3))

    plain = least()
    tfgc.enable(model.net)
    enabled = least()
    tfgc.disable(model.net)
    disabled = least()
    tfgc.enable(model, layers=[model.net])
    return plain, enabled, disabled, least()


@pytest.mark.gate
def test_the_peak_of_an_outer_model_that_has_trained_falls_and_rises_again():
    plain, enabled, disabled, one_block = memory.alone(peaks_of_an_outer_model)
    assert enabled < 0.6 * plain
    assert 0.85 * plain < one_block < 1.05 * plain
    assert 0.9 * plain < disabled < 1.1 * plain


@pytest.mark.parametrize("eager", [False, True])
def test_the_status_of_a_layer_that_cannot_be_recomputed_says_why_it_is_kept(eager):
    class Aside(L.Dense):
        def call(self, x):
            made = super().call(x)
            self.mean = tf.reduce_mean(made)
            return made

    model = keras.Sequential([keras.Input((6,)), Aside(6, name="aside"), L.Dense(6, name="dense")], name="net")
    model.compile("sgd", "mse", run_eagerly=eager, jit_compile=False)
    tfgc.enable(model, layers=model.layers)
    assert str(tfgc.status(model)).count("recomputed as one segment") == 2
    with pytest.warns(tfgc.NotReplayableWarning, match="puts a tensor aside"):
        model.fit(np.ones((4, 6)), np.ones((4, 6)), verbose=0)
    kept, recomputed = tfgc.status(model).plans
    assert re.match("net/aside: kept: it cannot be traced .*it puts a tensor aside", str(kept))
    assert str(recomputed) == "net/dense: recomputed as one segment"


class WithinStep(keras.Model):
    def train_step(self, data):
        return square_step(self, self.get_layer("net"), data[0])


def square_step(model, part, x):
    with tf.GradientTape() as tape:
        loss = square(part, x)
    weights = part.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return {"square": loss}


def test_the_status_after_training_through_another_model_says_what_is():
    """Nothing waits to be planned where the training that there is goes around the model that is enabled."""
    inner = net()
    sharing = keras.Model(inner.inputs, L.Dense(2)(inner.outputs[0]), name="sharing")
    around = WithinStep(inputs := keras.Input((6,)), L.Dense(2)(inner(inputs)), name="around")
    for model in (sharing, around):
        model.compile("sgd", "mse")
    tfgc.enable(inner, strategy="uniform", verbose=0)
    assert str(tfgc.status(inner)) == "net: enabled, to be planned at its first training call"
    sharing.fit(X, X[:, :2], verbose=0)
    assert "'sharing' trains its layers without calling it" in str(tfgc.status(inner))
    tfgc.enable(sharing, strategy="uniform", verbose=0)
    assert "trains by the plan of 'sharing'" in str(tfgc.status(inner))


def test_the_status_of_parts_that_are_equal_names_each():
    class Equal(keras.Sequential):
        def __eq__(self, other):
            return isinstance(other, Equal)

        def __hash__(self):
            return 0

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = (Equal([keras.Input((8,)), L.Dense(8)], name=name) for name in "ab")

    model = Net()
    for part in (model.first, model.second):
        tfgc.enable(part, tfgc.plan(part, strategy="uniform", segments=1), verbose=0)
    assert [one.part for one in tfgc.status(model).plans] == ["a", "b"]
