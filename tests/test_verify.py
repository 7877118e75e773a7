"""`tfgc.verify`: it reports equal steps as equal, and finds each kind of difference where they are not."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise, states
from models import Subclassed, built, everything

import tfgc
from tfgc._framework.diverted_calls import replaced
from tfgc._pairs import tensor_packing
from tfgc._training.planned_calls import PlannedCalls
from tfgc._verify import differences, loss_step, verify
from tfgc._verify.steps import Step

L = keras.layers
X, Y = noise(16, 8), noise(16, 4, seed=2)
TOKENS = tf.constant(np.random.default_rng(0).integers(0, 3, (16, 5)), "int32")
ALL = ("eager", "compiled", "graph", "xla")


def snapshot(model):
    return [np.array(v.numpy()) for v in states(model)]


@pytest.mark.gate
def test_equal_in_every_mode_and_the_model_is_left_as_it_was():
    model = fresh(everything)
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    before, function = snapshot(model), model.train_function
    verdict = tfgc.verify(model, tfgc.plan(model, strategy="uniform", segments=3), (X, Y), modes=ALL)
    assert verdict
    assert verdict.modes == ALL
    assert verdict.compared["gradient"] == 10
    assert verdict.compared["seed"] == 3  # the global one among them
    assert verdict.compared["added loss"] == 1
    assert verdict.compared["metric"] == 2
    assert not verdict.unrepeatable
    assert str(verdict).startswith("EQUAL: 3 steps in each of eager, compiled, graph, xla")
    for a, b in zip(before, snapshot(model)):
        np.testing.assert_array_equal(a, b)
    assert model.train_function is function
    assert "call" not in vars(model)


class Endpoint(L.Layer):
    """Adds a loss for each sample, as Keras's example of a CTC layer does."""

    def call(self, x):
        self.add_loss(tf.reduce_mean(x**2, -1, keepdims=True))
        return x


def test_an_added_loss_has_a_value_for_each_sample():
    model = fresh(
        lambda: keras.Sequential([keras.Input((8,)), L.Dense(8), L.Dense(4, kernel_regularizer="l2"), Endpoint()])
    )
    verdict = tfgc.verify(model, tfgc.plan(model, strategy="uniform", segments=2), X, modes=("eager", "graph"))
    assert verdict
    assert verdict.compared["added loss"] == 2


def test_the_loss_without_targets_has_the_precision_of_the_model():
    model = fresh(lambda: keras.Sequential([keras.Input((8,), dtype="float64"), L.Dense(4, dtype="float64")]))
    batch = tf.ones((2, 8), "float64"), None, None
    assert loss_step.LossStep(model, batch, None).once(*batch)["loss", "loss"].dtype == "float64"


def test_an_enabled_model_stays_enabled():
    model = fresh(everything)
    tfgc.enable(model, strategy="uniform")
    call = vars(model)["call"]
    assert tfgc.verify(model, None, X, modes="graph")
    assert vars(model)["call"] == call


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:.*mask:UserWarning")
def test_masks_sparse_gradients_and_an_unused_weight():
    class Unused(L.Layer):
        def build(self, shape):
            self.idle = self.add_weight(shape=(3,), name="idle")

        def call(self, x):
            return x * 1.0

    def build():
        inputs = keras.Input((5,), dtype="int32")
        x = L.LSTM(6)(L.Dropout(0.3)(L.Embedding(9, 4, mask_zero=True)(inputs)))
        return keras.Model(inputs, L.Dense(4)(Unused()(L.Dense(6)(x))))

    model = fresh(build)
    verdict = tfgc.verify(model, tfgc.plan(model, strategy="uniform", segments=3), (TOKENS, Y), loss="mse")
    assert verdict
    assert verdict.compared["gradient"] == 9


def test_an_embedding_of_three_inputs_has_its_rows_in_any_order():
    def towers():
        inputs = [keras.Input((3,), dtype="int32", name=name) for name in "abc"]
        embedding = L.Embedding(10, 4)
        x = L.Add()([L.Dense(4, activation="tanh")(embedding(tokens)) for tokens in inputs])
        return keras.Model(inputs, L.Dense(1)(L.Flatten()(x)))

    model = fresh(towers)
    x = [np.random.default_rng(seed).integers(0, 10, (4, 3)) for seed in range(3)]
    plan = tfgc.plan(model, strategy="uniform", segments=3)
    assert tfgc.verify(model, plan, (x, noise(4, 1)), loss="mse", modes="eager", steps=1)


@pytest.mark.gate
def test_layers_of_a_subclassed_model():
    model = fresh(built(Subclassed, X))
    assert tfgc.verify(model, None, (X, Y), layers=["block_0", "block_2"], loss="mse")
    assert not any("call" in vars(layer) for layer in model._flatten_layers())


def wrong(monkeypatch, change):
    """Let models run `change(call, inputs)` in place of their `call` where they train by a plan."""
    run = Step.run

    def changed(step, *args, rewritten=False, **kwargs):
        call = step.model.call
        if not (rewritten or "call" in vars(step.model)):
            return run(step, *args, **kwargs)
        with replaced(step.model, "call", lambda x, **options: change(lambda x: call(x, **options), x)):
            return run(step, *args, rewritten=rewritten, **kwargs)

    monkeypatch.setattr(Step, "run", changed)


def twice(call, x):
    call(x)
    return call(x)


@tf.custom_gradient
def thousandth_more(x):
    return tf.identity(x), lambda upstream: upstream * 1.001


WRONG = {
    "outputs": (lambda call, x: call(x) * 1.001, {"loss", "gradient"}),
    "gradients only": (lambda call, x: thousandth_more(call(x)), {"gradient"}),
    "state moves twice": (twice, {"seed", "state", "loss", "gradient"}),
    "no gradient": (lambda call, x: tf.stop_gradient(call(x)), {"gradient"}),
}


@pytest.mark.parametrize(("name", "modes"), in_turn(WRONG, ("eager", "graph")))
def test_a_wrong_step_is_found(name, modes, monkeypatch):
    change, kinds = WRONG[name]
    wrong(monkeypatch, change)
    model = fresh(everything)
    plan = tfgc.plan(model, example=X)
    verdict = tfgc.verify(model, plan, (X, Y), loss="mse", modes=modes, steps=2)
    assert not verdict
    assert verdict.worst.relative >= 5e-4
    assert kinds <= {difference.kind for difference in verdict.differences}
    assert str(verdict).startswith("NOT EQUAL")
    if name in ("gradients only", "no gradient"):
        assert ("Float64 tells it from an error" in str(verdict)) == (name == "gradients only" and modes != "graph")
    named = [d for d in verdict.differences if d.kind == "gradient" and d.name == "dense/kernel"]
    assert not named or named[0].layer == "dense"


class Changed(L.Layer):
    """Another layer where a planned step runs it."""

    planned = False

    def __init__(self, change):
        super().__init__()
        self.change = change

    def call(self, x):
        return self.change(x) if Changed.planned else x


def int8_with_lora(fault):
    """Each frozen row holds values half-way between two of int8: a rounding makes of them a step of 1/127."""
    inputs = keras.Input((4,), dtype="int32")
    x = L.Embedding(8, 64, trainable=False, name="frozen")(inputs)
    x = Changed(lambda x: x * (1 + 2.0**-22 * tf.sin(tf.range(64.0))))(x)
    x = Changed(fault)(L.Dense(8, "gelu", name="first")(x))
    model = keras.Model(inputs, L.Dense(4)(L.Flatten()(x)))
    row = (np.random.default_rng(0).integers(-100, 100, (8, 64)) + 0.5) / 127
    row[:, 0] = 1.0
    model.get_layer("frozen").set_weights([row])
    model.get_layer("first").quantize("int8")
    model.get_layer("first").enable_lora(2)
    return model


@tf.custom_gradient
def lost(x):
    return tf.identity(x), tf.zeros_like


@pytest.mark.parametrize("fault", [tf.identity, lost, lambda x: x * 1.3])
def test_a_step_with_int8_is_equal_within_the_noise_of_plain_steps_alone(fault, monkeypatch):
    def planned(call, x):
        with monkeypatch.context() as patched:
            patched.setattr(Changed, "planned", True)
            return call(x)

    wrong(monkeypatch, planned)
    model = fresh(lambda: int8_with_lora(fault))
    plan = tfgc.plan(model, strategy="uniform", segments=2)
    batch = np.arange(32).reshape(8, 4) % 8, noise(8, 4)
    verdict = tfgc.verify(model, plan, batch, loss="mse", modes="graph", steps=2)
    assert bool(verdict) is (fault is tf.identity), verdict
    if verdict:
        assert max(d.relative for d in verdict.tolerated) > 1e-4
    else:
        # The gradient of LoRA's first factor is zero until the second one, which starts as zeros, has moved.
        found = {(d.name, d.step) for d in verdict.differences}
        assert {("first/lora_kernel_a", 1), ("first/lora_kernel_b", 0)} <= found


def test_draws_from_numpy_make_plain_steps_differ():
    draws = np.random.default_rng(0)

    class Drawing(L.Layer):
        def call(self, x):
            return x + draws.standard_normal(8).astype("float32")

    layers = [L.Dense(8), Drawing(name="drawing"), L.Dense(8), L.Dense(4)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    verdict = tfgc.verify(model, None, (X, Y), loss="mse", modes="eager")
    assert not verdict
    assert "the loss 'loss'" in verdict.unrepeatable
    assert "not deterministic: the loss 'loss', in plain steps from one state" in str(verdict)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: tf.random.normal((8,)),
        lambda: tf.random.gamma((8,), 2.0),
        lambda: tf.random.poisson((8,), 2.0),
        lambda: tf.cast(tf.random.log_uniform_candidate_sampler([[1]], 1, 8, True, 99).sampled_candidates, "float32"),
        lambda: tf.image.sample_distorted_bounding_box([8, 8, 3], [[[0.0, 0.0, 1.0, 1.0]]], 0.1).bboxes[0, 0, :1],
    ],
    ids=["normal", "gamma", "poisson", "candidates", "bounding box"],
)
def test_what_draws_by_tf_random_cannot_be_compared(draw):
    class Raw(L.Layer):
        def call(self, x):
            return x + draw()

    model = keras.Sequential([keras.Input((8,)), L.Dense(8), Raw(), L.Dense(4)])
    with pytest.raises(tfgc.OptionError, match=r"the step draws by tf\.random"):
        tfgc.verify(model, None, (X, Y), loss="mse", modes="eager")


@pytest.mark.gate
def test_twice_the_difference_among_plain_steps_is_allowed_and_reported():
    """A convolution bias before BatchNormalization: its true gradient is zero.

    Where a CPU rounds both alike nothing is left to tolerate; the next test judges made-up steps.
    """
    image = noise(16, 8, 8, 3)

    def build():
        layers = [L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.Conv2D(4, 3), L.BatchNormalization()]
        return keras.Sequential([keras.Input((8, 8, 3)), *layers, L.Flatten(), L.Dense(4)])

    model = fresh(build)
    plan = tfgc.plan(model, strategy="uniform", segments=3)
    verdict = tfgc.verify(model, plan, (image, Y), loss="mse", modes=("graph", "xla"))
    assert verdict, str(verdict)
    assert all("bias" in d.name and "plain TensorFlow differs" in d.note for d in verdict.tolerated)


SPARSE = (np.array([1, 2]), np.ones((2, 3)))
# Two uses of a weight, in one order and in the other.
IN_ORDER = (np.array([1, 2, 1]), np.array([[1.0], [2.0], [4.0]]))
TURNED = (np.array([1, 1, 2]), np.array([[4.0], [1.0], [2.0]]))


@pytest.mark.parametrize(
    ("plain", "planned", "passes"),
    [
        (np.ones(4, "float32"), np.ones(4, "float32"), True),
        (np.ones(4, "float32"), np.ones(4, "float32") * (1 + 5e-6), True),
        (np.ones(4, "float32"), np.ones(4, "float32") * (1 + 5e-5), False),
        (np.ones(4, "float32"), None, False),
        (None, np.zeros(4), False),
        (None, None, True),
        (SPARSE, SPARSE, True),
        (SPARSE, np.ones((3, 3)), False),
        (SPARSE, (np.array([1, 0]), np.ones((2, 3))), False),
        (IN_ORDER, TURNED, True),
        (IN_ORDER, (np.array([1, 1, 2]), np.array([[4.0], [2.0], [1.0]])), False),
        (IN_ORDER, (np.array([1, 2, 2]), np.array([[1.0], [2.0], [4.0]])), False),
        (np.ones(4), np.ones(5), False),
        (np.ones(4, "float32"), np.ones(4), False),
        (np.array([1, np.nan]), np.array([1, np.nan]), True),
        (np.array([1, np.nan]), np.array([1, 2.0]), False),
        (np.zeros(4), np.full(4, 1e-9), True),
        (np.ones(4), ..., False),
    ],
)
def test_what_passes(plain, planned, passes):
    judge = differences.StepComparison("float32")
    name = ("gradient", "b/bias")
    judge.compare("graph", _with(name, plain), _with(name, planned))
    verdict = judge.verdict(("graph",), 1, "mse")
    assert bool(verdict) is passes
    if not passes:
        assert verdict.worst.name == "b/bias"
        assert verdict.worst.layer == "b"


def test_twice_the_largest_spread_among_plain_steps_is_allowed():
    name = ("gradient", "b/bias")
    plain, planned = (_with(name, np.full(4, value)) for value in (1.0, 1.03))

    def spread(*values):
        return lambda: iter([_with(name, np.full(4, value)) for value in values])

    for others, passes in (
        (spread(), False),
        (spread(1.01), False),
        (spread(1.0, 1.02), True),
        (spread(1.02, 1.0), True),
    ):
        judge = differences.StepComparison("float32")
        judge.compare("graph", plain, planned, others)
        assert bool(judge.verdict(("graph",), 1, "mse")) is passes


def test_other_plain_runs_are_compared_where_results_differ(monkeypatch):
    compared = []
    found = differences.relative_difference
    monkeypatch.setattr(differences, "relative_difference", lambda *each: [compared.append(each), found(*each)][1])
    name = ("gradient", "b/bias")
    plain, planned, other = (_with(name, np.full(4, value)) for value in (1.0, 1.03, 1.02))
    differences.StepComparison("float32").compare("graph", plain, planned, lambda: iter([other]))
    assert len(compared) == len(plain[0]) + 2


@pytest.mark.parametrize(("planned", "passes"), [(None, True), (np.zeros(4), True), (np.full(4, 1e-3), False)])
def test_none_in_another_plain_run_allows_none_and_nothing_else(planned, passes):
    """Of a weight in a branch that is not taken, plain graphs have zeros, and plain eager code None."""
    name = ("gradient", "b/bias")
    judge = differences.StepComparison("float32")
    judge.compare("graph", _with(name, np.zeros(4)), _with(name, planned), lambda: iter([_with(name, None)]))
    assert bool(judge.verdict(("graph",), 1, "mse")) is passes


def test_plain_steps_are_tried_in_another_mode_and_with_values_some_roundings_off(monkeypatch):
    """Weights, frozen ones, scales and inputs; seeds, ids, masks and counters are exact."""
    model = keras.Sequential([keras.Input((8,)), L.Dense(64), L.BatchNormalization(), L.Dropout(0.5), L.Dense(4)])
    model.layers[0].trainable = False
    model.layers[1].moving_mean.assign(noise(64))
    x = noise(2, 8) * [[0.0], [1.0]]
    step = loss_step.LossStep(model, (x, tf.zeros((2, 4)), None), "mse")
    before, ran = step.read(), []
    monkeypatch.setattr(step, "run", lambda *given: (None, ran.append(given)))
    assert len(list(verify._others(step, "graph", [before]))) == 5
    _, _, (moved,), (x_moved, *_) = ran[1]
    np.testing.assert_allclose(x_moved, x, rtol=6e-7)
    assert (x_moved.numpy() != x.numpy()).any()
    for name, value in before.items():
        np.testing.assert_allclose(moved[name], value, rtol=6e-7)
    assert {name for name, value in before.items() if (moved[name] != value).any()} == {
        *(w.path for w in model.trainable_weights if w.numpy().any()),
        model.layers[0].kernel.path,
        model.layers[1].moving_mean.path,
    }


@pytest.mark.parametrize(("norm", "error", "passes"), [(1e-15, 2e-15, True), (1e-15, 2e-11, False)])
def test_a_gradient_that_is_zero_but_for_rounding(norm, error, passes):
    """Its terms cancel, so that another order of sums changes all of it."""
    plain, planned = (
        [{("gradient", "value/kernel"): np.full(1, 9.0), ("gradient", "key/bias"): np.full(1, bias)}]
        for bias in (norm, norm + error)
    )
    comparison = differences.StepComparison("float64")
    comparison.compare("eager", plain, planned)
    assert bool(comparison.verdict(("eager",), 1, "mse")) is passes


def _with(name, value):
    values = {("gradient", "a/kernel"): np.ones(4, "float32"), ("seed", "a/s"): np.array([1, 0]), name: value}
    return [{key: value for key, value in values.items() if value is not ...}]


def test_seeds_must_be_equal_to_the_bit():
    judge = differences.StepComparison("float32")
    judge.compare("eager", _with(("seed", "x"), np.array([1, 0])), _with(("seed", "x"), np.array([1, 1])))
    assert {d.kind for d in judge.verdict(("eager",), 1, "mse").differences} == {"seed"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"modes": "grph"}, tfgc.OptionError, "grph"),
        ({"modes": ()}, tfgc.OptionError, "give some of"),
        ({"steps": 0}, tfgc.OptionError, "steps=0"),
        ({"loss": "mse"}, tfgc.OptionError, "needs targets"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        tfgc.verify(fresh(everything), None, X, **arguments)


def test_a_number_of_steps_from_numpy_is_written_as_json():
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(4)]))
    verdict = tfgc.verify(model, tfgc.plan(model), (X, Y), loss="mse", modes="eager", steps=np.int64(1))
    assert json.loads(json.dumps(verdict.to_dict()))["steps"] == 1


def test_a_plan_and_layers_exclude_each_other():
    model = fresh(everything)
    with pytest.raises(tfgc.OptionError, match="not both"):
        tfgc.verify(model, tfgc.plan(model), X, layers=["dense"])


def softmax_head():
    hidden = [L.Dense(8, "tanh") for _ in range(2)]
    return keras.Sequential([keras.Input((4,)), *hidden, L.Dense(3), L.Softmax()])


@pytest.mark.parametrize("compiled", [True, False])
def test_a_step_that_hides_logits_is_found(compiled, monkeypatch):
    """With the user's own loss, and without one."""
    model = fresh(softmax_head)
    model.layers[-2].kernel.assign(model.layers[-2].kernel * 60)
    if compiled:
        model.compile("sgd", "sparse_categorical_crossentropy")
    batch = (noise(8, 4), np.arange(8) % 3)
    plan = tfgc.plan(model, strategy="uniform", segments=2)
    assert tfgc.verify(model, plan, batch, modes="compiled")
    monkeypatch.setattr(tensor_packing.Packing, "unpack", without_attributes(tensor_packing.Packing.unpack))
    verdict = tfgc.verify(model, plan, batch, modes="compiled")
    assert not verdict
    assert verdict.worst.kind in ("loss", "gradient")
    assert f"loss: {'the compiled loss' if compiled else 'the mean square of the outputs and of the logits'}" in str(
        verdict
    )


def without_attributes(unpack):
    def hiding(packing, tensors):
        return tf.nest.map_structure(lambda t: tf.identity(t) if tf.is_tensor(t) else t, unpack(packing, tensors))

    return hiding


def test_compiled_segments_are_called_in_a_loop():
    """A step that is traced as a whole is what `graph` tries."""
    eager = []

    class Telling(L.Layer):
        def call(self, x):
            return x * 1.0

    model = keras.Sequential([keras.Input((4,)), L.Dense(4), Telling(), L.Dense(1)])
    original = PlannedCalls.call

    def call(self, *args, **kwargs):
        eager.append(tf.executing_eagerly())
        return original(self, *args, **kwargs)

    call.is_patched_call = True
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PlannedCalls, "call", call)
        tfgc.verify(model, tfgc.plan(model, strategy="uniform"), (noise(8, 4),), modes=("compiled",), steps=2)
    assert eager == [True, True]


def test_a_model_compiled_for_xla_is_tried_so():
    model = fresh(softmax_head)
    model.compile("sgd", "mse", jit_compile=True)
    verdict = tfgc.verify(model, tfgc.plan(model, strategy="uniform"), (noise(8, 4), noise(8, 3)), steps=1)
    assert verdict
    assert verdict.modes == ALL


@pytest.mark.parametrize(("loss", "first", "second"), [(np.nan, 1.0, 1.0), (1.0, np.nan, np.inf)])
def test_steps_without_a_finite_number_are_not_equal(loss, first, second):
    step = {("loss", "loss"): np.array(loss), ("gradient", "a/bias"): np.full(4, first), ("gradient", "c"): None}
    steps = [{**step, ("gradient", "b/bias"): np.full(4, second)}]
    judge = differences.StepComparison("float32")
    judge.compare("graph", steps, steps, lambda: iter([steps]))
    verdict = judge.verdict(("graph",), 1, "mse")
    assert not verdict
    assert "no finite number in the plain step" in str(verdict)


def test_a_gradient_without_a_finite_number_is_noted():
    found = {"a/bias": np.ones(4), "b/bias": np.full(4, np.nan), "c/bias": (np.array([1]), np.full((1, 2), np.inf))}
    steps = [{("gradient", name): value for name, value in found.items()}] * 2
    judge = differences.StepComparison("float32")
    judge.compare("graph", steps, steps)
    verdict = judge.verdict(("graph",), 1, "mse", "something else")
    assert verdict
    first, second = verdict.note.split("; ")
    assert first == "something else"
    assert second == (
        "no finite number in the plain step, so nothing was compared, in the gradients 'b/bias', 'c/bias'"
    )


def test_a_batch_that_is_not_a_number_shows_nothing():
    model = fresh(softmax_head)
    plan = tfgc.plan(model, strategy="uniform")
    assert not tfgc.verify(model, plan, (np.full((4, 4), np.nan), noise(4, 3)), loss="mse", modes="eager", steps=1)


@pytest.mark.parametrize(
    ("expected", "given", "relative"),
    [
        ([np.inf, 1.0], [np.nan, 1.0], np.inf),
        ([np.inf, 1.0], [-np.inf, 1.0], np.inf),
        ([np.inf, 1.0], [2.0, 1.0], np.inf),
        ([np.inf, 2.0], [np.inf, 3.0], 0.5),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
    ],
)
def test_what_is_not_finite_has_to_be_the_same(expected, given, relative):
    assert differences.relative_difference(np.array(expected), np.array(given), 0.0)[0] == relative
