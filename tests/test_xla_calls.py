"""Plans by the calls of layers for steps that XLA compiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, noise, plain_steps, train
from models import built

import tfgc
from tfgc._calls import names, options, places, reading, tracing
from tfgc._calls.call_plans import CallPlans
from tfgc._calls.replays import Piece
from tfgc._calls.simulation import Simulator
from tfgc._costs import node_costs
from tfgc._planning import budgets
from tfgc._simulate import simulator
from tfgc._tracing import keras_graph

L = keras.layers
F32 = 4
IMAGES, SEQUENCE = noise(4, 8, 8, 3), noise(8, 16, 12)
FEATURES = 4 * 8 * 8 * 8 * F32


class Normalized(keras.Model):
    """What XLA fuses: a normalization, and an activation between convolutions."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (L.Conv2D(8, 3, padding="same", use_bias=False) for _ in range(2))
        self.norm, self.activation = L.BatchNormalization(), L.Activation("softplus")

    def call(self, x, training=None):
        return self.second(self.activation(self.norm(self.first(x), training=training)))


class Block(L.Layer):
    """A block of a transformer, whose sums belong to no layer inside."""

    def __init__(self, width):
        super().__init__()
        self.norms = [L.LayerNormalization() for _ in range(2)]
        self.attention = L.MultiHeadAttention(2, width // 2, use_bias=False)
        self.up, self.down = L.Dense(4 * width, activation="gelu"), L.Dense(width)

    def call(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y)
        return x + self.down(self.up(self.norms[1](x)))


class Transformer(keras.Model):
    def __init__(self, blocks=4, width=16):
        super().__init__()
        self.embed, self.head = L.Dense(width), L.Dense(4)
        self.blocks = [Block(width) for _ in range(blocks)]

    def call(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Pooled(keras.Model):
    """Pooling with overlapping windows, whose gradient scatters into zeros."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (L.Conv2D(8, 3, padding="same", activation="relu") for _ in range(2))
        self.pool = L.MaxPooling2D(3, 2, padding="same")

    def call(self, x):
        return self.second(self.pool(self.first(x)))


def step_of(build, x, *, xla=True):
    return reading.read(tracing.trace(fresh(build), x, xla=xla), xla=xla)


def calls_of(layer, found):
    return next(option.calls for option in found if option.layer is layer)


def kept(step):
    """Bytes of what layers make and the backward pass reads, without small statistics."""
    made_by_layers = (b for b in step.kept if isinstance(step.operations[step.makers[b]].owner.layer, L.Layer))
    return [step.sizes[buffer] for buffer in made_by_layers if step.sizes[buffer] >= FEATURES]


def test_an_activation_between_convolutions_is_written_once():
    """The first convolution's result, and what the second one reads; TensorFlow keeps the normalized one beside."""
    assert kept(step_of(Normalized, IMAGES)) == [FEATURES] * 2
    assert kept(step_of(Normalized, IMAGES, xla=False)) == [FEATURES] * 3


def test_a_sum_that_two_layers_read_is_written_and_one_that_a_layer_reads_is_not():
    step = step_of(Transformer, SEQUENCE)
    made = [step.operations[step.makers[buffer]] for buffer in step.kept]
    holders = [type(operation.owner.layer).__name__ for operation in made]
    # The last sum is read by the head alone, whose product needs it in memory; the others by a norm and the next sum.
    assert holders.count("Block") == 2 * 4


def test_a_replay_makes_what_is_fused_again_from_what_is_written():
    model = fresh(Normalized)
    step = reading.read(tracing.trace(model, IMAGES, xla=True), xla=True)
    found = options.whole_layers(step, names.layers_by_name(model))
    replay = Simulator(step).replay(Piece(calls_of(model.activation, found)))
    assert [step.sizes[buffer] for buffer in replay.inputs if step.sizes[buffer] >= FEATURES] == [FEATURES]
    assert {type(step.operations[step.makers[buffer]].owner.layer) for buffer in replay.inputs} >= {L.Conv2D}


def test_gradients_of_weights_come_right_behind_what_they_read():
    with tf.Graph().as_default():
        x, weight, upstream = (tf.compat.v1.placeholder(tf.float32, (2, 2)) for _ in range(3))
        other = tf.matmul(upstream, weight)
        gradient = tf.matmul(x, upstream)
        last = tf.matmul(other, upstream)
    runs = [x.op, weight.op, upstream.op, other.op, last.op, gradient.op]
    order = places.under_xla(runs, {gradient.op})
    assert sorted(runs, key=order.__getitem__) == [x.op, weight.op, upstream.op, gradient.op, other.op, last.op]


def test_zeros_of_pooling_are_there_to_the_end_unless_it_is_recomputed():
    """Two buffers of the input's size; a replay makes that gradient without them."""
    model = fresh(Pooled)
    step = reading.read(tracing.trace(model, IMAGES, xla=True), xla=True)
    assert [operation.workspace for operation in step.operations if operation.workspace] == [2 * FEATURES]
    pooled = Piece(calls_of(model.pool, options.whole_layers(step, names.layers_by_name(model))))
    last = [[*Simulator(step).timeline(pieces)][-1][1] for pieces in ((), (pooled,))]
    assert last[0] - last[1] == 2 * FEATURES


def transformer_by_nodes(blocks=4, width=16):
    """The same operations as those of `Transformer`, in layers with names."""
    inputs = keras.Input(SEQUENCE.shape[1:])
    x = L.Dense(width)(inputs)
    for _ in range(blocks):
        y = L.LayerNormalization()(x)
        x = L.Add()([x, L.MultiHeadAttention(2, width // 2, use_bias=False)(y, y)])
        y = L.Dense(width)(L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(x)))
        x = L.Add()([x, y])
    return keras.Model(inputs, L.Dense(4)(x))


def test_the_plain_step_is_predicted_as_by_nodes():
    model = fresh(transformer_by_nodes)
    graph = node_costs.annotate(keras_graph.Program(model, 8), xla=True).counting(whole_step=True)
    nothing = tfgc.Plan.from_cuts(graph, [], strategy="keep_all")
    by_nodes = simulator.estimate(graph, nothing, 0).activation_bytes
    by_calls = CallPlans(model, SEQUENCE, xla=True).estimate(None, 0).activation_bytes
    assert by_calls == pytest.approx(by_nodes, rel=0.06)


@pytest.mark.gate
def test_plans_say_that_they_are_for_xla_and_load_again():
    model = fresh(Transformer)
    plan = tfgc.plan(model, example=SEQUENCE, mode="xla")
    assert plan.options == {"mode": "xla"}
    assert tfgc.Plan.from_json(plan.to_json()) == plan
    step = tfgc.estimate(model, plan=plan, example=SEQUENCE, mode="xla")
    plain = tfgc.estimate(model, example=SEQUENCE, mode="xla")
    assert step.activation_bytes < 0.5 * plain.activation_bytes
    assert step.allocated_bytes > step.peak_bytes  # There are gaps in its heap.
    front = tfgc.pareto(model, example=SEQUENCE, mode="xla")
    assert front[0].outlook.peak_bytes <= plan.outlook.peak_bytes
    assert front[-1].outlook.overhead == 0


@pytest.mark.gate
def test_budgets_are_those_of_the_step_that_xla_compiles():
    model = fresh(Transformer)
    plain = tfgc.estimate(model, example=SEQUENCE, mode="xla")
    chosen = tfgc.plan(model, example=SEQUENCE, mode="xla", budget="70%")
    step = tfgc.estimate(model, plan=chosen, example=SEQUENCE, mode="xla")
    assert step.needed_bytes <= 0.7 * plain.needed_bytes
    assert 0 < step.overhead < tfgc.plan(model, example=SEQUENCE, mode="xla").outlook.overhead


class Encoder(L.Layer):
    def __init__(self, width=16, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [Block(width) for _ in range(4)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def with_a_fat_layer():
    inputs = keras.Input((16, 16))
    return keras.Model(inputs, L.Dense(4)(Encoder(name="encoder")(inputs)))


@pytest.mark.gate
def test_a_functional_model_with_a_layer_full_of_blocks_is_planned_by_calls():
    model = fresh(with_a_fat_layer)
    plan = tfgc.plan(model, 8, mode="xla")
    assert plan.calls
    assert plan.options == {"mode": "xla"}
    assert all(name.startswith("encoder/") for name in plan.recomputed_layers)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("build", "x", "on_oom"),
    [
        pytest.param(Transformer, SEQUENCE, None, marks=pytest.mark.slow),
        pytest.param(Transformer, SEQUENCE, "replan", marks=pytest.mark.slow),
        (with_a_fat_layer, noise(8, 16, 16), None),
    ],
)
def test_fit_that_xla_compiles_is_planned_for_xla(build, x, on_oom):
    model = fresh(build)
    y = np.zeros((8, 16, 4), "float32")
    model.compile("sgd", "mse", jit_compile=True)
    tfgc.enable(model, budget="70%", verbose=0, on_oom=on_oom)
    if on_oom is None:
        model(x, training=True)  # planned as it runs, and not for what comes next
    model.fit(x.numpy(), y, batch_size=8, verbose=0)
    made = tfgc.status(model).plans[-1]
    assert made.mode == "xla"
    assert any(segment.mode == "recompute" for segment in made.plan.segments)
    assert made.predicted_bytes <= 0.7 * made.plain_bytes


@pytest.mark.gate
def test_a_call_runs_by_the_plan_for_its_size(replays):
    """A call of another size may need no plan, and the next one of the first size needs it again."""
    inputs = keras.Input((None, 64))
    model = keras.Model(inputs, L.Dense(4)(Encoder(64, name="encoder")(inputs)))
    tfgc.enable(model, verbose=0)

    def recomputes(rows, length):
        replays.clear()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(noise(rows, length, 64), training=True))
        tape.gradient(loss, model.trainable_variables)
        return bool(replays)

    assert recomputes(8, 64)
    with pytest.warns(tfgc.NothingSavedWarning, match="weights"):
        assert not recomputes(1, 2)
    assert recomputes(8, 64)
    assert [bool(one.unchanged) for one in tfgc.status(model).plans] == [True, False]


@pytest.mark.gate
def test_a_selective_plan_stays_one_under_xla():
    model = fresh(lambda: Transformer(width=64))
    front = tfgc.pareto(model, example=SEQUENCE)
    plan = next(plan for plan in front if plan.selective_layers)
    plans = CallPlans(model, SEQUENCE, xla=True)
    assert plans.with_figures(plan).selective_layers == plan.selective_layers
    assert not any(one.selective_layers for one in plans.front())


def test_the_weights_of_a_layer_that_is_called_twice_are_transposed_once():
    layer = L.Conv1D(32, 3, padding="same")
    inputs = keras.Input((16, 32))
    model = keras.Model(inputs, layer(layer(inputs)))
    (copies,) = reading.read(tracing.trace(model, noise(8, 16, 32), xla=True), xla=True).resident
    assert copies == 3 * 32 * 32 * F32 // 2


@pytest.mark.parametrize(("positions", "workspace"), [(16, 0), (12, 32 << 20)])
def test_products_take_a_workspace_where_attention_does_not_fit_into_tiles(positions, workspace):
    x = keras.Input((positions, 8))
    model = keras.Model(x, L.Dense(4)(L.MultiHeadAttention(2, 4)(x, x)))
    peak = CallPlans(model, noise(4, positions, 8), xla=True).estimate(None, 0).peak_bytes
    assert workspace <= peak < workspace + (1 << 20)


@pytest.mark.gate
def test_gradients_under_xla_are_plain():
    y, settings = [noise(8, 16, 4, seed=2)], {"graph": True, "jit_compile": True, "lr": 0.01}
    build = built(Transformer, SEQUENCE)
    plain, model = plain_steps(build, SEQUENCE, y, **settings), fresh(build)
    tfgc.enable(model, tfgc.plan(model, example=SEQUENCE, mode="xla"))
    assert_equal(plain, train(model, SEQUENCE, y, **settings), exact=False)


@pytest.mark.slow
def test_the_largest_batch_is_predicted_for_xla():
    found = {
        mode: tfgc.max_batch(lambda: Transformer(), "8MB", example=SEQUENCE, mode=mode, confirm=False)
        for mode in ("graph", "xla")
    }
    assert found["xla"].plain.batch_size > found["graph"].plain.batch_size
    assert found["xla"].best.batch_size > 2 * found["xla"].plain.batch_size


@pytest.mark.slow
@pytest.mark.compile
def test_budgets_hold_by_the_compiler():
    model = fresh(lambda: Transformer(blocks=6, width=128))
    example = noise(16, 64, 12), noise(16, 64, 4)
    model(example[0])
    model.compile("sgd", "mse")
    plain = tfgc.compiled_memory(model, example=example, optimizer="sgd")
    predicted = tfgc.estimate(model, example=example, optimizer="sgd", mode="xla")
    weights = budgets.fixed_bytes(model, "sgd")
    assert predicted.peak_bytes - weights == pytest.approx(plain.temp_bytes, rel=0.12)
    for share in (0.7, 0.5):
        budget = int(share * (plain.temp_bytes + weights))
        plan = tfgc.plan(model, example=example, optimizer="sgd", mode="xla", budget=budget)
        planned = tfgc.compiled_memory(model, plan=plan, example=example, optimizer="sgd")
        assert planned.temp_bytes + weights <= budget
