"""Plans for steps that XLA compiles: what it fuses costs nothing, and the first call of a compiled step plans for that.

What XLA fuses was read from modules that its GPU compiler scheduled; `tests/test_compiled_memory.py` compiles some.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from equality import noise

import tfgc
from tfgc._cli.group import cli
from tfgc._core.buffers import Buffers
from tfgc._core.graph import Ref
from tfgc._core.tensors import peak_of
from tfgc._costs import node_costs
from tfgc._measure import case_choice, process
from tfgc._planning import annotated
from tfgc._records.job import PredictionJob
from tfgc._tracing import keras_graph

L = keras.layers
F32 = 4


def graph_of(model, batch=4, *, xla=True):
    return node_costs.annotate(keras_graph.Program(model, batch), xla=xla)


def saved(model, name, **options):
    """What the backward pass of a layer reads, by the layers that made it, and the large buffers inside."""
    graph = graph_of(model, **options)
    cost = graph.nodes[graph.position[name]].cost
    return {ref.node for ref in cost.saved_tensors}, [n for n in cost.saved_internal_bytes if n > 1000]


def row(*layers, shape=(32, 32, 8)):
    return keras.Sequential([keras.Input(shape, name="x"), L.Conv2D(8, 3, padding="same", name="first"), *layers])


def normalized(*, filters=8):
    bn, relu = L.BatchNormalization(name="bn"), L.ReLU(name="relu")
    return row(bn, relu, L.Conv2D(filters, 3, padding="same", name="second"))


def test_a_normalization_between_convolutions_is_fused():
    """Its output is computed again from the convolution's; what the next convolution reads is written."""
    graph = graph_of(normalized())
    b = Buffers.of(graph)
    assert b.number[Ref("bn")] == b.number[Ref("first")]
    assert b.number[Ref("relu")] != b.number[Ref("first")]
    # TensorFlow keeps the relu's output for its sign, XLA takes that from the normalization's operand.
    assert saved(normalized(), "relu")[0] == {"first"}
    assert saved(normalized(), "relu", xla=False)[0] == {"relu"}
    assert saved(normalized(), "second")[0] == {"relu"}


@pytest.mark.parametrize(("size", "differences"), [(32, 1), (33, 0)], ids=["4,096 rows", "4,356 rows"])
def test_deviations_from_the_mean_of_few_rows_are_written(size, differences):
    """One kernel sums up to 4,096 rows, and its operand is written for the backward pass beside it."""
    model = row(L.BatchNormalization(name="bn"), shape=(size, size, 8))
    _, internal = saved(model, "bn")
    assert internal == [4 * size * size * 8 * F32] * differences


def test_a_sum_that_one_layer_reads_is_fused_and_one_that_several_read_is_not():
    x = keras.Input((8, 8, 4), name="x")
    made = [L.Conv2D(4, 3, padding="same", name=f"conv{i}")(x) for i in range(2)]
    total = L.Add(name="sum")(made)
    relu = L.ReLU(name="relu")(total)
    last = L.Conv2D(4, 3, padding="same", name="last")(relu)
    one, two = keras.Model(x, last), keras.Model(x, L.Add(name="out")([last, total]))
    for model, fused in ((one, True), (two, False)):
        b = Buffers.of(graph_of(model))
        assert (b.number[Ref("sum")] == b.number[Ref("conv0")]) == fused
    assert saved(one, "relu")[0] == {"conv0", "conv1"}
    assert saved(two, "relu")[0] == {"sum"}


@pytest.mark.parametrize("also_read", [False, True])
def test_an_activation_before_a_long_connection_is_computed_again_behind_it(also_read):
    """Pooling reads it from memory, and makes it for itself; what two layers read from memory is written."""
    x = keras.Input((16, 16, 4), name="x")
    down = L.BatchNormalization()(L.Conv2D(32, 3, padding="same", name="down")(x))
    down = L.ReLU(name="relu")(down)
    up = L.Conv2DTranspose(32, 2, strides=2)(L.MaxPooling2D(name="pool")(down))
    ends = [L.Conv2D(4, 3, padding="same")(L.Concatenate(name="concat")([up, down]))]
    ends += [L.Conv2D(4, 3, padding="same")(down)] * also_read
    model = keras.Model(x, ends)
    graph, size = graph_of(model), 4 * 16 * 16 * 32 * F32
    b = Buffers.of(graph)
    assert (b.number[Ref("relu")] == b.number[Ref("down")]) != also_read
    assert size in saved(model, "pool")[1] or also_read
    assert graph.position["pool"] not in graph.joined


def test_concatenations_in_dense_blocks_are_read_from_their_parts():
    x = keras.Input((8, 8, 4), name="x")
    grown = x
    for i in range(3):
        y = L.ReLU(name=f"relu{i}")(L.BatchNormalization(name=f"bn{i}")(grown))
        y = L.Conv2D(4, 3, padding="same", name=f"conv{i}")(y)
        grown = L.Concatenate(name=f"concat{i}")([grown, y])
    kept, _ = saved(keras.Model(x, L.BatchNormalization(name="end")(grown)), "end")
    assert kept == {"x", "conv0", "conv1", "conv2"}


def test_an_activation_inside_of_a_layer_is_fused_and_an_error_function_is_kept():
    """`gelu` by the error function: XLA keeps the product before it, and the value of the function."""
    dense = L.Dense(64, activation="gelu", name="up")
    model = keras.Sequential([keras.Input((16, 64), name="x"), dense, L.Dense(64, name="down")])
    size = 4 * 16 * 64 * F32
    kept, internal = saved(model, "up")
    assert kept == {"x"}
    assert internal == [size, size]
    # Behind it comes something elementwise: its output is not written, and stands for one of the two.
    fused = [L.Dense(64, activation="gelu", name="up"), L.Dropout(0.1), L.Dense(64)]
    assert saved(keras.Sequential([keras.Input((16, 64), name="x"), *fused]), "up") == ({"x", "up"}, [size])
    relu = keras.Sequential([keras.Input((16, 64)), L.Dense(64, "relu", name="up"), L.Dropout(0.1), L.Dense(64)])
    assert saved(relu, "up")[1] == []


def test_half_of_the_copies_of_kernels_of_convolutions_counts_and_products_read_theirs_as_they_are():
    graph = graph_of(normalized(filters=16))
    kernels = 3 * 3 * 8 * 8 * F32 + 3 * 3 * 8 * 16 * F32
    assert graph.resident_bytes() == kernels // 2
    assert graph_of(keras.Sequential([keras.Input((8,)), L.Dense(8)])).resident_bytes() == 0
    step = tfgc.estimate(normalized(filters=16), 4, mode="xla", optimizer="sgd")
    assert step.fixed_bytes == tfgc.estimate(normalized(filters=16), 4, optimizer="sgd").fixed_bytes + kernels // 2
    assert step.needed_bytes == step.allocated_bytes >= step.peak_bytes


def drops(last):
    """A dropout behind which `last` comes."""
    x = keras.Input((16, 32), name="x")
    return keras.Model(x, last(x, L.Dropout(0.5, name="drop")(L.Dense(32, name="up")(x))))


def test_what_is_dropped_before_a_sum_is_stored_as_a_mask_and_before_a_product_as_it_was_drawn():
    size = 4 * 16 * 32
    summed = drops(lambda x, y: L.LayerNormalization()(L.Add()([x, y])))
    multiplied = drops(lambda _, y: L.Dense(8)(y))
    assert saved(summed, "drop")[1] == [size]
    assert saved(multiplied, "drop")[1] == [size * F32]
    cost = graph_of(summed).costs[graph_of(summed).position["drop"]]
    assert sum(cost.forward_saving_trace) == size


class Residual(L.Layer):
    """What it adds is a product that its backward pass does not read."""

    def build(self, shape):
        self.norm, self.dense, self.drop = L.LayerNormalization(), L.Dense(shape[-1]), L.Dropout(0.5)

    def call(self, x, training=None):
        return x + self.drop(self.dense(self.norm(x)), training=training)


class TwoDropouts(L.Layer):
    def build(self, shape):
        self.drops = [L.Dropout(0.5), L.Dropout(0.2)]

    def call(self, x, training=None):
        return [drop(x, training=training) for drop in self.drops]


def test_a_dropout_of_what_a_layer_computes_itself_leaves_a_buffer():
    """It counted as its input: twelve such layers were one buffer, and no plan could cut between them."""
    x = keras.Input((16, 32))
    model = keras.Model(x, L.LayerNormalization()(Residual(name="second")(Residual(name="first")(x))))
    b = Buffers.of(graph_of(model))
    assert b.number[Ref("second")] != b.number[Ref("first")] not in b.graph_outputs


def test_what_is_drawn_and_not_compared_is_stored_as_it_was_drawn():
    x = keras.Input((16, 32), name="x")
    scaled = L.GaussianDropout(0.5, name="drop")(L.Dense(32)(x))
    assert saved(keras.Model(x, L.LayerNormalization()(L.Add()([x, scaled]))), "drop")[0] == {"drop"}


def test_masks_are_counted_one_by_one():
    x = keras.Input((16, 32), name="x")
    one, two = TwoDropouts(name="drops")(L.Dense(32)(x))
    model = keras.Model(x, [L.Add(name="left")([x, one]), L.Add(name="right")([x, two])])
    assert saved(model, "drops")[1] == [4 * 16 * 32] * 2


def test_a_softmax_of_no_attention_needs_no_workspace():
    x = keras.Input((8, 8, 4))
    head = L.Conv2D(21, 1, activation="softmax")(L.Dense(8)(x))
    assert max(map(peak_of, (cost.backward_trace for cost in graph_of(keras.Model(x, head)).costs))) < 1 << 20


@pytest.mark.parametrize(("positions", "workspace"), [(32, 0), (20, 32 << 20)])
def test_products_take_a_workspace_where_attention_does_not_fit_into_tiles(positions, workspace):
    x = keras.Input((positions, 8))
    graph = graph_of(keras.Model(x, L.Dense(4, name="end")(L.MultiHeadAttention(2, 4, name="attention")(x, x))))
    for node, cost in zip(graph.nodes, graph.costs):
        for trace in (cost.forward_trace, cost.forward_saving_trace, cost.backward_trace):
            assert workspace <= peak_of(trace) < workspace + (1 << 20), node.name
    # Kernels of queries, keys and values are copied into one.
    assert graph.resident_bytes() == (3 * 8 * 8 * F32 if workspace else 0)


def test_no_segment_starts_inside_of_what_xla_fuses():
    graph = graph_of(normalized())
    assert graph.joined == {graph.position["relu"]}
    for plan in tfgc.strategies.frontier(graph).plans:
        starts = {segment.nodes[0] for segment in plan.segments}
        assert "relu" not in starts


def residual(blocks=6, filters=16):
    x = inputs = keras.Input((16, 16, filters))
    for i in range(blocks):
        y = L.Conv2D(filters, 3, padding="same", name=f"block{i}_a")(x)
        y = L.ReLU()(L.BatchNormalization()(y))
        y = L.BatchNormalization()(L.Conv2D(filters, 3, padding="same", name=f"block{i}_b")(y))
        x = L.ReLU(name=f"block{i}_out")(L.Add()([x, y]))
    return keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling2D()(x)))


def test_a_plan_for_xla_needs_less_there_than_one_for_the_executor():
    model = residual()
    ours, other = (tfgc.plan(model, 8, strategy="optimal", mode=mode) for mode in ("xla", "graph"))
    peaks = [tfgc.estimate(model, 8, plan, mode="xla").activation_bytes for plan in (ours, other)]
    assert peaks[0] <= peaks[1]
    assert ours.outlook.peak_bytes == peaks[0]
    assert "mode='xla'" in ours.explain()
    assert "xla" not in other.explain()
    assert all(plan.options["mode"] == "xla" for plan in tfgc.pareto(model, 8, mode="xla"))


@pytest.mark.parametrize("budget", ["80%", "60%"])
def test_budgets_are_kept_as_xla_is_predicted(budget):
    model = residual()
    step = tfgc.estimate(model, 8, tfgc.plan(model, 8, budget=budget, mode="xla"), mode="xla")
    assert step.needed_bytes <= float(budget[:-1]) / 100 * tfgc.estimate(model, 8, mode="xla").needed_bytes
    assert step.needed_bytes - step.fixed_bytes == round(1.05 * (step.allocated_bytes - step.fixed_bytes))


@pytest.mark.parametrize("loss", [None, "mse"])
def test_the_gradient_of_the_loss_is_written_over_the_outputs(loss):
    """They were counted twice where the loss is not known: a transformer's logits were half of its least heap."""
    x = keras.Input((16,))
    hidden = L.Dense(16)(x)
    model = keras.Model(x, [L.Dense(4096)(hidden), L.Dense(2048)(hidden)])
    step = tfgc.estimate(model, 64, mode="xla", optimizer="sgd", loss=loss)
    assert step.allocated_bytes - step.fixed_bytes < 1.2 * (step.peak_bytes - step.fixed_bytes)


def test_a_step_under_xla_that_recomputes_nothing_needs_no_margin():
    model = residual()
    plain = tfgc.estimate(model, 8, mode="xla")
    assert plain.needed_bytes == plain.allocated_bytes > plain.peak_bytes  # There are gaps in its heap.
    chosen = tfgc.plan(model, 8, budget="100%", mode="xla")
    assert all(segment.mode == "keep" for segment in chosen.segments)


def test_a_budget_below_the_least_names_the_least_under_xla():
    with pytest.raises(tfgc.InfeasibleBudgetError) as caught:
        tfgc.plan(residual(), 8, budget=1000, mode="xla")
    assert tfgc.plan(residual(), 8, budget=caught.value.least, mode="xla").segments


@pytest.mark.gate
def test_a_fit_under_xla_is_planned_at_its_first_call():
    model = residual()
    x, y = noise(8, 16, 16, 16), noise(8, 4, seed=2)
    model.compile("sgd", "mse", jit_compile=True)
    tfgc.enable(model, strategy="optimal", verbose=0).fit(x, y, batch_size=8, verbose=0)
    (step,) = tfgc.status(model).plans
    assert (step.mode, step.plan.strategy) == ("xla", "optimal")
    assert any(segment.mode == "recompute" for segment in step.plan.segments)
    assert step.predicted_bytes < 0.6 * step.plain_bytes


@pytest.mark.gate
def test_a_plan_for_xla_changes_nothing_but_memory():
    """In float64: gradients of biases before normalizations are zero but for rounding."""
    keras.config.set_dtype_policy("float64")
    model = residual(3, 4)
    batch = noise(4, 16, 16, 4), noise(4, 4, seed=2)
    verdict = tfgc.verify(model, tfgc.plan(model, 4, mode="xla"), batch, modes=["graph", "xla"])
    assert verdict.equal, verdict


@pytest.mark.gate
def test_a_step_under_xla_is_measured_and_predicted_as_one():
    cases = case_choice.plan_cases(lambda: residual(2, 4), 4, "optimal", modes="xla")
    assert [case.name for case in cases] == ["plain-eager", "plain-graph", "plain-xla", "optimal-xla"]
    found = process.ask(PredictionJob(tuple(cases)))
    model = residual(2, 4)
    plan = tfgc.plan(model, 4, strategy="optimal", mode="xla")
    step = tfgc.estimate(model, 4, plan, mode="xla", optimizer="sgd", loss="mse")
    fixed = tfgc.estimate(model, 4, optimizer="sgd").fixed_bytes
    assert found.of(cases[3]).predicted.peak_bytes == step.allocated_bytes - fixed


@pytest.mark.slow
def test_the_largest_batch_under_xla_is_another_one():
    found = {mode: tfgc.max_batch(lambda: residual(3), "8MB", mode=mode, confirm=False) for mode in ("graph", "xla")}
    assert found["xla"].batch_size != found["graph"].batch_size
    model, batch = residual(3), found["xla"].batch_size
    step = tfgc.estimate(model, batch, found["xla"].plan, mode="xla")
    assert step.needed_bytes + batch * (16 * 16 * 16 + 2 * 4) * F32 <= 8e6


def unknown_mode():
    tfgc.plan(residual(1), 4, mode="xl")


def op_by_op():
    tfgc.estimate(residual(1), 4, mode="eager")


def timed():
    tfgc.plan(residual(1), 4, mode="xla", measure=True)


def subclassed():
    tfgc.estimate(keras.Model(), 4, mode="compiled", example=np.zeros((4, 2)))


def batch_by_batch():
    tfgc.max_batch("sample_cnn", "1GB", mode="compiled")


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (unknown_mode, "mode='xl': must be one of compiled, graph, xla; did you mean 'xla'"),
        (op_by_op, "mode='eager': .* op by op cannot be predicted"),
        (timed, "measure=True times layers as TensorFlow runs them, not as XLA compiles them"),
        (subclassed, "mode='compiled': the step of .* is predicted in 'graph' and 'xla'"),
        (batch_by_batch, "mode='compiled': .* one tf.function"),
    ],
)
def test_modes_that_cannot_be(mistake, text):
    with pytest.raises(tfgc.OptionError, match=text):
        mistake()


def test_the_shell_plans_for_xla(tmp_path):
    path = str(tmp_path / "plan.json")
    run = CliRunner().invoke(cli, ["plan", "sample_cnn", "--batch-size", "8", "--mode", "xla", "-o", path])
    assert run.exit_code == 0, run.output
    keras.utils.clear_session()  # names the layers as in the first process
    shown = CliRunner().invoke(cli, ["explain", "sample_cnn", "--batch-size", "8", "--mode", "xla", "--plan", path])
    assert shown.exit_code == 0, shown.output
    keras.utils.clear_session()
    model = tfgc.zoo.build("sample_cnn")
    with open(path) as file:
        plan = tfgc.Plan.from_json(file.read())
    step = tfgc.estimate(model, 8, plan, mode="xla", optimizer="adam")
    assert plan.outlook.peak_bytes == step.activation_bytes


def test_sizes_that_depend_on_values_are_read_for_xla():
    x = keras.Input((8,), dtype="int32")
    model = keras.Model(x, L.Dense(2)(L.LSTM(8)(L.Embedding(10, 8)(x))))
    graph = annotated.graph_of(model, 4, None, None, whole_step=True, loss="mse", xla=True)
    assert graph.xla
    assert not any(cost.obstacle for cost in graph.costs)
    assert tf.executing_eagerly()


def pooled(*, padded, pool=3):
    layers = [L.ZeroPadding2D(1)] if padded else []
    return row(L.ReLU(), *layers, L.MaxPooling2D(pool, 2, name="pool"))


def test_zeros_of_pooling_with_overlapping_windows_count_from_the_forward_pass_on():
    """A kernel that writes a tensor of that shape makes them, too; a padded input has no such kernel beside it."""
    kernels = 3 * 3 * 8 * 8 * F32 // 2
    found = [
        graph_of(pooled(padded=padded, pool=pool)).resident_bytes() - kernels
        for padded, pool in ((False, 3), (False, 2), (True, 3))
    ]
    assert found == [2 * 4 * 32 * 32 * 8 * F32, 0, 0]


def test_zeros_of_pooling_do_not_count_where_it_is_recomputed():
    model = row(L.ReLU(), L.MaxPooling2D(3, 2, name="pool"), L.Conv2D(8, 3))
    steps = [
        tfgc.estimate(model, 4, tfgc.plan(model, 4, strategy="manual", keep=[kept]), optimizer="sgd", mode="xla")
        for kept in ("first", "pool")
    ]
    assert steps[0].fixed_bytes - steps[1].fixed_bytes == 2 * 4 * 32 * 32 * 8 * F32


class Doubling(L.Layer):
    """Each of its many elementwise operations reads the one before twice."""

    def call(self, x):
        for _ in range(60):
            x = x * x + x
        return x


def test_long_chains_of_elementwise_operations_are_read_once_each():
    kept, internal = saved(row(Doubling(name="chain"), L.Conv2D(8, 3, name="second")), "chain")
    assert kept == {"first"}
    assert internal == []
