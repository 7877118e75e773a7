"""From a model to plans: budgets, open sizes, optimizers, timings, and the errors of mistakes."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import in_turn

import tfgc
from tfgc import InfeasibleBudgetError, OptionError, Plan
from tfgc._planning import ahead, budgets, free_memory
from tfgc._units import parse_bytes

L = keras.layers
BATCH = 32


def deep():
    """Large activations, small weights."""
    x = inputs = keras.Input((32, 32, 3))
    for _ in range(6):
        x = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", activation="relu")(x))
    return keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))


def wide():
    """Large weights, small activations."""
    return keras.Sequential([keras.Input((100,)), *(L.Dense(100) for _ in range(5))])


def tokens():
    inputs = keras.Input((None,), dtype="int32", name="tokens")
    return keras.Model(inputs, L.Dense(4)(L.LSTM(8)(L.Embedding(20, 8)(inputs))))


@pytest.fixture(scope="module")
def plain():
    return tfgc.estimate(deep(), BATCH)


def test_a_budget_can_be_written_in_five_ways(plain, monkeypatch):
    """Bytes leave room for what an allocator adds; a share is one of simulated bytes."""
    model, share = deep(), 0.8
    budget = int(share * plain.needed_bytes)
    monkeypatch.setattr(free_memory, "free_bytes", lambda: int(budget / (1 - budgets.MARGIN)) + 1)
    held = budgets.resident_bytes(model)  # there already, and not free
    total = int(share * plain.needed_bytes)
    in_bytes = [tfgc.plan(model, BATCH, budget=written) for written in (budget, f"{budget / 1000:.3f}kB", "auto")]
    in_shares = [tfgc.plan(model, BATCH, budget=written) for written in (f"{100 * share}%", str(share))]
    assert [plan.outlook.budget_bytes for plan in in_bytes] == [total, total, total + held]
    assert [plan.outlook.budget_bytes for plan in in_shares] == [total, total]
    for plans in (in_bytes[:2], in_shares):
        assert plans[0].segments == plans[1].segments
        assert plans[0].strategy == "budget"
        assert tfgc.estimate(model, BATCH, plans[0]).needed_bytes <= budget
    assert tfgc.estimate(model, BATCH, in_shares[0]).overhead > 0
    assert in_bytes[0].outlook.overhead >= in_shares[0].outlook.overhead


def test_auto_leaves_a_margin_of_what_is_free(monkeypatch):
    assert budgets.budget_bytes("auto", None) > 2**20
    monkeypatch.setattr(free_memory, "free_bytes", lambda: 10**9)
    assert budgets.budget_bytes("auto", None) == 900_000_000


@pytest.mark.parametrize(
    ("text", "count"), [("1kb", 1000), ("1.5 GB", 1.5e9), ("2GiB", 2**31), (" 7 ", 7), ("1e6", 1e6), (5, 5), (5.9, 5)]
)
def test_budgets_that_can_be_read(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "budget",
    [
        -1,
        0,
        0.0,
        "abc",
        "-4GB",
        "4 giga",
        "GB",
        "1,5GB",
        "nan",
        "inf",
        float("nan"),
        float("inf"),
        True,
        [4],
        "9e99",
    ],
)
def test_budgets_that_cannot_be_read(budget):
    with pytest.raises(OptionError, match=r"budget=.*positive number of bytes such as"):
        tfgc.plan(wide(), 4, budget=budget)


@pytest.mark.parametrize("budget", ["0%", "-10%", "%", "x%", "nan%", "inf%"])
def test_shares_that_cannot_be(budget):
    with pytest.raises(OptionError, match=f"budget='{budget}': a share is a positive part of the plain step's peak"):
        tfgc.plan(wide(), 4, budget=budget)


@pytest.mark.gate
@pytest.mark.parametrize(("build", "strategy"), in_turn([deep, wide], ["budget", "ilp"]))
def test_the_least_budget_that_an_error_names_works(build, strategy):
    model = build()
    with pytest.raises(InfeasibleBudgetError, match=r"no plan fits in 1,000 bytes .*: the smallest budget") as error:
        tfgc.plan(model, BATCH, budget=1000, strategy=strategy)
    least, node = error.value.least, error.value.node
    assert least > budgets.fixed_bytes(model)
    assert f"{least:,} bytes, set by node {node!r}" in str(error.value)
    assert tfgc.plan(model, BATCH, budget=least, strategy=strategy).strategy == strategy
    if strategy == "ilp":  # nested plans may go below what the error knows
        with pytest.raises(InfeasibleBudgetError):
            tfgc.plan(model, BATCH, budget=int(0.9 * least), strategy=strategy)


@pytest.mark.gate
def test_a_larger_budget_is_hardly_slower_nor_a_smaller_one_larger(plain):
    model = deep()
    with pytest.raises(InfeasibleBudgetError) as error:
        tfgc.plan(model, BATCH, budget="1B")
    least = error.value.least
    budgets = np.linspace(least, 1.3 * plain.needed_bytes, 8).astype(int)  # of which room is left for an allocator
    outlooks = [tfgc.plan(model, BATCH, budget=int(budget)).outlook for budget in budgets]
    assert outlooks[-1].overhead == 0 < outlooks[0].overhead
    for tight, loose in itertools.pairwise(outlooks):
        assert loose.overhead <= tight.overhead + 0.02  # each is searched for by itself
        assert tight.peak_bytes <= loose.peak_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segments": 3}, "strategy 'optimal' takes no option 'segments'; articulation, sqrt, uniform take it"),
        ({"time_limit": 3}, "takes no option 'time_limit'; ilp takes it"),
        ({"layers": ["dense"]}, r"takes no option 'layers': tfgc\.enable\(model, layers=\.\.\.\) recomputes"),
        ({"strategy": "budget"}, "needs budget="),
        ({"strategy": "ilp"}, "needs budget="),
        ({"budget": "1GB", "position": 3}, "did you mean 'positions'"),
        ({"budget": "1GB", "positions": 0}, "positions=0: must be an integer >= 1"),
        ({"budget": "1GB", "nested": "no"}, "nested='no': must be True or False"),
        ({"measure": True}, "takes no option 'measure'"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(OptionError, match=message):
        tfgc.plan(wide(), **{"batch_size": 4, **options})


@pytest.mark.parametrize("use", [tfgc.pareto, tfgc.estimate])
def test_bytes_are_not_compared_without_a_batch_size(use):
    with pytest.raises(OptionError, match="batch_size is needed"):
        use(wide())
    fixed = keras.Sequential([keras.Input(batch_shape=(4, 100)), L.Dense(100), L.Dense(100)])
    assert use(fixed) == use(fixed, 4)


def test_open_dimensions_are_asked_for_and_can_be_answered():
    model = tokens()
    for ask in (
        lambda **more: tfgc.plan(model, 4, budget="1GB", **more),
        lambda **more: tfgc.estimate(model, 4, **more),
    ):
        with pytest.raises(OptionError, match="input_shapes="):
            ask()
        assert ask(input_shapes={"tokens": (9,)}) == ask(example=np.zeros((4, 9), "int32"))
    with pytest.raises(OptionError, match="did you mean 'tokens'"):
        tfgc.plan(model, 4, budget="1GB", input_shapes={"token": (9,)})


def test_bytes_without_a_batch_size_are_those_of_one_sample():
    model = deep()
    one, many = tfgc.plan(model), tfgc.plan(model, ahead.NOMINAL_BATCH)
    assert one.strategy == "optimal"
    assert one.batch_size is None
    assert [len(s.nodes) for s in one.segments] == [len(s.nodes) for s in many.segments]
    assert [s.stored_bytes for s in one.segments] == [s.stored_bytes // 64 for s in many.segments]
    assert one.outlook.peak_bytes == many.outlook.peak_bytes // 64
    assert one.outlook.overhead == many.outlook.overhead
    assert "for one sample" in one.explain()


def test_the_front_is_sorted_and_every_plan_on_it_is_the_best_at_its_peak():
    model = deep()
    front = tfgc.pareto(model, BATCH)
    assert len(front) > 3
    for tight, loose in itertools.pairwise(plan.outlook for plan in front):
        assert tight.peak_bytes < loose.peak_bytes
        assert tight.overhead > loose.overhead
    assert front[-1].outlook.overhead == 0
    assert [s.mode for s in front[-1].segments] == ["keep"]
    for plan in front:
        assert Plan.from_json(plan.to_json()) == plan
    for plan in (front[0], front[len(front) // 2]):
        needed = tfgc.estimate(model, BATCH, plan).needed_bytes
        assert tfgc.plan(model, BATCH, budget=int(1.3 * needed)).outlook.needed_bytes <= 1.3 * needed


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        ("sgd", 0),
        (keras.optimizers.SGD(momentum=0.9), 1),
        ("adam", 2),
        (None, 2),
        (keras.optimizers.Adam(amsgrad=True), 3),
        ("adamw", 2),
        ("rmsprop", 1),
        ("adagrad", 1),
    ],
)
def test_fixed_bytes_are_weights_and_slots(optimizer, slots):
    model = keras.Sequential([keras.Input((6,)), L.Dense(5), L.BatchNormalization(), L.Dense(3)])
    trained = 4 * (6 * 5 + 5 + 2 * 5 + 5 * 3 + 3)
    others = 4 * 2 * 5  # moving mean and variance
    told = tfgc.estimate(model, 4, optimizer=optimizer)
    assert told.fixed_bytes == trained + others + slots * trained


@pytest.mark.parametrize(
    "make",
    [
        keras.optimizers.Adafactor,  # rows and columns of matrices in place of a slot
        keras.optimizers.Nadam,  # a product for all variables
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
        lambda: keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2),
        keras.optimizers.Ftrl,
    ],
)
def test_slots_have_the_shapes_that_the_optimizer_makes(make):
    layers = [L.Conv2D(4, 3), L.BatchNormalization(), L.Conv2D(4, 3), L.Flatten(), L.Dense(50), L.Dense(50)]
    model = keras.Sequential([keras.Input((12, 12, 4)), *layers])
    optimizer = make()
    scalars = [tuple(v.shape) for v in optimizer.variables]  # what it has before it sees a model is not counted
    assert scalars == len(scalars) * [()]
    counted = tfgc.estimate(model, 4, optimizer=optimizer).fixed_bytes
    assert not optimizer.built
    made = len(optimizer.variables)
    optimizer.build(model.trainable_variables)
    slots = optimizer.variables[made:]
    assert counted == sum(v.value.numpy().nbytes for v in [*model.weights, *slots])


def test_slots_of_large_weights_are_counted_without_memory():
    """A copy of the optimizer is built for weights of these shapes, in a graph."""
    large = [keras.KerasTensor((2**20, 2**20), name="kernel"), keras.KerasTensor((2**20,), name="bias")]
    assert budgets._slot_bytes("adam", large) == 8 * (2**40 + 2**20)


def test_a_budget_is_planned_for_while_a_function_is_traced():
    """An optimizer of whose class a copy is made then makes variables, which a `tf.function` may not."""
    model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8, "gelu") for _ in range(4))])
    found = []

    @tf.function(autograph=False)
    def step(x):
        found.append(tfgc.plan(model, 64, budget="90%"))
        return x

    step(tf.ones(()))
    assert found == [tfgc.plan(model, 64, budget="90%")]


def test_the_optimizer_of_a_compiled_model_counts_and_is_left_alone():
    model = wide()
    weights = 4 * 5 * (100 * 100 + 100)
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    assert tfgc.estimate(model, 4).fixed_bytes == 2 * weights
    assert not model.optimizer.built
    model.optimizer.build(model.trainable_variables)
    scalars = sum(v.value.numpy().nbytes for v in model.optimizer.variables if len(v.shape) == 0)
    assert tfgc.estimate(model, 4).fixed_bytes == 2 * weights + scalars
    assert tfgc.estimate(model, 4, optimizer="adam").fixed_bytes == 3 * weights


def test_the_whole_step_counts_gradients_of_weights():
    weights = 4 * 5 * (100 * 100 + 100)
    told = tfgc.estimate(wide(), 1, optimizer="sgd", loss="mse")
    assert told.fixed_bytes == weights
    # All are there when the first update begins.
    assert weights <= told.peak_bytes - told.fixed_bytes < weights + 4 * 100 * 20


def test_the_loss_that_keras_chooses_by_the_targets_counts():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(50, activation="softmax")])
    model.compile("sgd", "crossentropy")
    named, chosen = (
        tfgc.estimate(model, 64, loss=loss, optimizer="sgd") for loss in ("categorical_crossentropy", None)
    )
    assert [each[:2] for each in chosen.timeline] == [each[:2] for each in named.timeline]


@pytest.mark.parametrize(
    ("mode", "why"),
    [("eager", "cannot be predicted"), ("compiled", "cannot be predicted"), ("grap", "did you mean 'graph'")],
)
def test_a_mode_that_cannot_be_predicted_is_refused(mode, why):
    with pytest.raises(OptionError, match=f"mode='{mode}'.*{why}"):
        tfgc.estimate(wide(), 1, mode=mode)
