"""From a model to plans: budgets, open sizes, optimizers, timings, and the errors of mistakes."""

import dataclasses
import itertools
import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise, states

import tfgc
from tfgc import InfeasibleBudgetError, OptionError, Plan, TfgcError
from tfgc._costs import timing
from tfgc._costs.step_times import NodeSeconds
from tfgc._planning import annotated, budgets, free_memory
from tfgc._tracing import keras_graph
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


@pytest.mark.parametrize("share", [1.0, 0.8, 0.6])
def test_a_budget_can_be_written_in_five_ways(plain, share, monkeypatch):
    model = deep()
    budget = int(share * plain.needed_bytes)
    monkeypatch.setattr(free_memory, "free_bytes", lambda: int(budget / (1 - budgets.MARGIN)) + 1)
    plans = [
        tfgc.plan(model, BATCH, budget=written)
        for written in (budget, f"{budget / 1000:.3f}kB", f"{100 * share}%", str(share), "auto")
    ]
    assert all(plan.segments == plans[0].segments for plan in plans)
    held = budgets.resident_bytes(model)  # there already, and not free
    assert [plan.outlook.budget_bytes for plan in plans] == [budget] * 4 + [budget + held]
    assert plans[0].strategy == "budget"
    told = tfgc.estimate(model, BATCH, plans[0])
    assert told.needed_bytes <= budget
    assert (told.overhead > 0) == (share < 1)


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
    with pytest.raises(
        InfeasibleBudgetError, match="no plan fits in 1,000 bytes: the smallest budget that works"
    ) as error:
        tfgc.plan(model, BATCH, budget=1000, strategy=strategy)
    least, node = error.value.least, error.value.node
    assert least > budgets.fixed_bytes(model)
    assert node in {layer.name for layer in model.layers}
    assert f"{least:,} bytes, set by node {node!r}" in str(error.value)
    assert tfgc.plan(model, BATCH, budget=least, strategy=strategy).strategy == strategy
    with pytest.raises(InfeasibleBudgetError):
        tfgc.plan(model, BATCH, budget=least - 1, strategy=strategy)


@pytest.mark.gate
def test_a_larger_budget_is_never_slower_nor_a_smaller_one_larger(plain):
    model = deep()
    with pytest.raises(InfeasibleBudgetError) as error:
        tfgc.plan(model, BATCH, budget="1B")
    least = error.value.least
    budgets = np.linspace(least, plain.needed_bytes, 8).astype(int)
    outlooks = [tfgc.plan(model, BATCH, budget=int(budget)).outlook for budget in budgets]
    assert outlooks[-1].overhead == 0 < outlooks[0].overhead
    for tight, loose in itertools.pairwise(outlooks):
        assert loose.overhead <= tight.overhead
        assert tight.peak_bytes <= loose.peak_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "sqr"}, "no strategy 'sqr'; did you mean 'sqrt'"),
        ({"strategy": "optimum"}, "did you mean 'optimal'"),
        ({"segments": 3}, "strategy 'optimal' takes no option 'segments'; articulation, sqrt, uniform take it"),
        ({"time_limit": 3}, "takes no option 'time_limit'; ilp takes it"),
        ({"layers": ["dense"]}, r"takes no option 'layers': tfgc\.enable\(model, layers=\.\.\.\) recomputes"),
        ({"strategy": "sqrt", "segment": 3}, "did you mean 'segments'"),
        ({"strategy": "sqrt", "budget": 10**9}, "does not honour a budget"),
        ({"strategy": "budget"}, "needs budget="),
        ({"strategy": "ilp"}, "needs budget="),
        ({"budget": "1GB", "position": 3}, "did you mean 'positions'"),
        ({"budget": "1GB", "positions": 0}, "positions=0: must be an integer >= 1"),
        ({"budget": "1GB", "nested": "no"}, "nested='no': must be True or False"),
        ({"optimizer": "adan", "budget": "1GB"}, "no optimizer 'adan'; did you mean 'adam'"),
        ({"batch_size": None, "budget": "1GB"}, "batch_size is needed"),
        ({"batch_size": None, "measure": True}, "batch_size is needed"),
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
    one, many = tfgc.plan(model), tfgc.plan(model, annotated.NOMINAL_BATCH)
    assert one.strategy == "optimal"
    assert one.batch_size is None
    assert [s.nodes for s in one.segments] == [s.nodes for s in many.segments]
    assert [s.stored_bytes for s in one.segments] == [s.stored_bytes // 64 for s in many.segments]
    assert one.outlook.peak_bytes == many.outlook.peak_bytes // 64
    assert one.outlook.overhead == many.outlook.overhead
    assert "for one sample" in one.explain()
    sample = 32 * 32 * 8 * 4
    again = [s for s in one.segments if s.mode == "recompute"]
    assert {s.stored_bytes for s in again} <= {0, sample}


def test_the_front_is_sorted_and_every_plan_on_it_is_the_best_at_its_peak():
    model = deep()
    front = tfgc.pareto(model, BATCH)
    assert len(front) > 3
    for tight, loose in itertools.pairwise(plan.outlook for plan in front):
        assert tight.peak_bytes < loose.peak_bytes
        assert tight.overhead > loose.overhead
    assert front[-1].outlook.overhead == 0
    assert [len(s.nodes) for s in front[-1].segments] == [len(model.layers) - 1]
    for plan in front:
        plan.check(keras_graph.read(model))
        assert Plan.from_json(plan.to_json()) == plan
    for plan in (front[0], front[len(front) // 2]):
        needed = tfgc.estimate(model, BATCH, plan).needed_bytes
        assert tfgc.plan(model, BATCH, budget=needed).outlook.overhead == plan.outlook.overhead


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
    told = tfgc.estimate(wide(), 1, optimizer="sgd")
    assert told.fixed_bytes == weights
    assert told.activation_bytes < 4 * 100 * 20
    # Each goes with the update that follows it; in a loop in Python all are there at the end.
    one = weights // 5
    assert one <= told.peak_bytes - told.fixed_bytes <= one + told.activation_bytes
    compiled = tfgc.estimate(wide(), 1, mode="compiled", optimizer="sgd")
    assert weights <= compiled.peak_bytes - compiled.fixed_bytes <= weights + compiled.activation_bytes


def test_the_loss_that_keras_chooses_by_the_targets_counts():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(50, activation="softmax")])
    model.compile("sgd", "crossentropy")
    named = tfgc.estimate(model, 64, loss="categorical_crossentropy")
    assert tfgc.estimate(model, 64).timeline == named.timeline


@pytest.mark.parametrize(("mode", "why"), [("eager", "cannot be predicted"), ("grap", "did you mean 'graph'")])
def test_a_mode_that_cannot_be_predicted_is_refused(mode, why):
    with pytest.raises(OptionError, match=f"mode='{mode}'.*{why}"):
        tfgc.estimate(wide(), 1, mode=mode)


def test_plan_files_that_are_damaged(tmp_path):
    good = tfgc.plan(deep(), BATCH, budget="80%").to_json()
    newer = json.dumps({**json.loads(good), "version": 8})
    forged = json.dumps({**json.loads(good), "outlook": {"peak_bytes": 3}})
    for text, message in [
        ("", "not a plan file"),
        (good[: len(good) // 2], "not a plan file"),
        (good[1:], "not a plan file"),
        (newer, "version 8, but this tfgc reads up to 7: upgrade tfgc"),
        (forged, "not a plan file, or a damaged one"),
        (good.replace("conv2d_1", "conv2d_9"), "do not match its fingerprint"),
    ]:
        with pytest.raises(TfgcError, match=message):
            Plan.from_json(text)


class SparseProduct(L.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(8, 8))

    def call(self, x):
        return tf.sparse.sparse_dense_matmul(x, tf.convert_to_tensor(self.w))

    def compute_output_shape(self, shape):
        return (shape[0], 8)


class TestMeasured:
    """Planning by seconds of a step that is run, and remembered in a file."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TFGC_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    @pytest.fixture
    def timings(self, monkeypatch):
        batches = []

        def measured(program, graph):
            batches.append(graph.batch_size)
            return [NodeSeconds(2.0, 3.0, 1.5)] * len(graph)

        monkeypatch.setattr(timing, "measured", measured)
        return batches

    def test_seconds_are_counted_and_remembered(self, timings, folder):
        model = wide()
        plan = tfgc.plan(model, 4, strategy="uniform", segments=2, measure=True)
        assert plan.outlook.unit == "s"
        # A replay takes what a forward pass takes.
        assert [s.work for s in plan.segments if s.mode == "recompute"] == [2.0]
        (file,) = folder.iterdir()
        assert len(json.loads(file.read_text())) == 2  # the first gives its input no gradient, the others are alike
        again = tfgc.plan(model, 4, strategy="uniform", segments=2, measure=True)
        assert again == plan
        tfgc.plan(keras.models.clone_model(model), 4, strategy="optimal", measure=True)
        assert timings == [4]
        tfgc.plan(model, 8, strategy="optimal", measure=True)
        assert timings == [4, 8]

    def test_layers_of_other_code_are_timed_again(self, timings):
        def layered(add):
            # A loop, whose traces have numbers of the process in their names.
            class Added(L.Layer):
                def call(self, x):
                    return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x + add), (0, x))[1]

            return keras.Sequential([keras.Input((4,)), L.Dense(4, name="dense"), Added(name="added")])

        for add, timed in ((1.0, 1), (1.0, 1), (2.0, 2)):
            tfgc.plan(layered(add), 4, strategy="uniform", segments=2, measure=True)
            assert len(timings) == timed

    def test_each_kind_of_gpu_has_times_of_its_own(self, timings, folder, monkeypatch):
        devices, model = tf.config.list_physical_devices, wide()
        for name in ("Tesla T4", "NVIDIA A100-SXM4-40GB", None):
            gpu = {} if name is None else {"device_name": name}
            monkeypatch.setattr(
                tf.config, "list_physical_devices", lambda kind=None: ["0"] if kind == "GPU" else devices(kind)
            )
            monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _, gpu=gpu: gpu)
            monkeypatch.setattr(free_memory, "free_bytes", lambda: 10**9)
            tfgc.plan(model, 4, strategy="uniform", segments=2, measure=True)
        assert timings == [4, 4, 4]
        names = " ".join(file.name for file in folder.iterdir())
        assert "-Tesla-T4-" in names
        assert "-NVIDIA-A100-SXM4-40GB-" in names
        assert "-GPU-" in names

    def test_a_step_that_may_not_fit_is_timed_with_a_part_of_the_batch(self, timings, monkeypatch):
        whole = tfgc.plan(wide(), 8, strategy="uniform", segments=2, measure=True)
        plain = tfgc.estimate(wide(), 8)
        monkeypatch.setattr(free_memory, "free_bytes", lambda: (plain.peak_bytes - plain.fixed_bytes) // 2)
        monkeypatch.setenv("TFGC_CACHE", f"{os.environ['TFGC_CACHE']}2")
        part = tfgc.plan(wide(), 8, strategy="uniform", segments=2, measure=True)
        assert timings == [8, 2]
        assert [s.work for s in part.segments] == [4 * s.work for s in whole.segments]

    @pytest.mark.parametrize("damage", ["", "{", "[]", "3", '{"a": 3}', '{"a": [1, 2]}', '{"a": [1, 2, "b"]}'])
    def test_a_damaged_file_is_ignored(self, timings, folder, damage):
        model = wide()
        tfgc.estimate(model, 4, measure=True)
        (file,) = folder.iterdir()
        whole = file.read_text()
        for text in (damage, whole[: len(whole) // 2]):
            file.write_text(text)
            timings.clear()
            assert tfgc.estimate(model, 4, measure=True).unit == "s"
            assert timings == [4]
            (file,) = folder.iterdir()

    def test_timing_is_real_and_touches_no_state(self):
        def build():
            layers = [L.Dense(6), L.BatchNormalization(), L.Dropout(0.5), L.GaussianNoise(0.1), L.Dense(6)]
            return keras.Sequential([keras.Input((6,)), *layers])

        model = fresh(build)
        before = [np.array(v) for v in states(model)]
        told = tfgc.estimate(model, 4, measure=True)
        assert told.unit == "s"
        assert 0 < told.work < 10
        # Measured seconds are added up in two orders.
        assert told.work == pytest.approx(told.plain_work)
        for old, new in zip(before, states(model), strict=True):
            np.testing.assert_array_equal(old, np.array(new))
        x = noise(4, 6)
        np.testing.assert_array_equal(model(x, training=True), fresh(build)(x, training=True))

    def test_layers_with_integer_inputs_and_open_sizes_are_timed(self):
        told = tfgc.estimate(tokens(), 4, input_shapes={"tokens": (9,)}, measure=True)
        assert told.unit == "s"
        assert told.work > 0

    @pytest.mark.filterwarnings("ignore:'product' cannot be run twice:tfgc.NotReplayableWarning")
    def test_layers_with_sparse_inputs_are_timed(self):
        inputs = [keras.Input((8,), sparse=True), keras.Input((8,))]
        x = L.Dense(8)(L.Concatenate()([SparseProduct(name="product")(inputs[0]), inputs[1]]))
        told = tfgc.estimate(keras.Model(inputs, L.Dense(8)(x)), 4, measure=True)
        assert told.unit == "s"
        assert told.work > 0

    def test_a_budget_can_be_met_by_seconds(self, monkeypatch, tmp_path):
        """Of two kinds of layers in turn, alike in bytes, those run again that are quick."""
        kinds = ("relu", "tanh")
        layers = [L.Conv2D(8, 3, padding="same", activation=kinds[i % 2], name=f"{kinds[i % 2]}{i}") for i in range(10)]
        model = keras.Sequential([keras.Input((32, 32, 8)), *layers, L.GlobalAveragePooling2D(), L.Dense(2)])
        budget = int(0.75 * tfgc.estimate(model, 4).needed_bytes)

        def time_as(slow):
            def measured(program, graph):
                forward = [9.0 if node.name.startswith(slow) else 1.0 for node in graph.nodes]
                return [NodeSeconds(seconds, 1.0, seconds) for seconds in forward]

            monkeypatch.setattr(timing, "measured", measured)
            monkeypatch.setenv("TFGC_CACHE", str(tmp_path / slow))

        plans = {}
        for slow in kinds:
            time_as(slow)
            plans[slow] = tfgc.plan(model, 4, budget=budget, measure=True)
            assert plans[slow].outlook.unit == "s"
        for slow, quick in (kinds, kinds[::-1]):
            time_as(slow)
            own, other = (tfgc.estimate(model, 4, plans[kind], measure=True) for kind in (slow, quick))
            assert max(own.needed_bytes, other.needed_bytes) <= budget
            assert own.work < other.work

    def test_a_plan_of_real_timings_fits_its_budget(self):
        model = deep()
        plan = tfgc.plan(model, 4, budget="80%", measure=True)
        assert plan.outlook.unit == "s"
        assert plan.outlook.overhead > 0
        assert tfgc.estimate(model, 4, plan).needed_bytes <= 0.8 * tfgc.estimate(model, 4).needed_bytes
        assert tf.config.functions_run_eagerly() is False


def test_optimal_keeps_last_segments_that_raise_no_peak():
    """What the end of the forward pass stores, the backward pass reads at once."""
    model = tfgc.zoo.build("sample_cnn", 32)
    plan = tfgc.plan(model, batch_size=4)
    again = dataclasses.replace(plan.segments[-1], mode="recompute")
    recomputed = dataclasses.replace(plan, segments=(*plan.segments[:-1], again))
    kept, run_again = (tfgc.estimate(model, 4, which) for which in (plan, recomputed))
    assert plan.segments[-1].mode == "keep"
    assert kept.peak_bytes <= run_again.peak_bytes
    assert kept.overhead < run_again.overhead
