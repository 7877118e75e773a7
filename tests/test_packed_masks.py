"""Random masks are stored for replays in bits, and drawn once a step."""

import statistics

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_trains_alike, fresh, mostly, noise
from replays import operations_of_step

import tfgc
from tfgc._core.buffers import Buffers
from tfgc._costs import node_costs
from tfgc._pure import packed_masks
from tfgc._tracing.keras_graph import Program

L = keras.layers
X, Y = noise(4, 24, 32), [noise(4, 1, seed=2)]
DRAW = "StatelessRandomUniformV2"


def dropouts(behind=L.Identity):
    """Blocks with masks of one and of two sizes besides the batch; attention's has no multiple of eight elements."""
    x = inputs = keras.Input((24, 32))
    for _ in range(3):
        y = L.MultiHeadAttention(1, 32, dropout=0.2)(x, x[:, :21])
        x = behind()(L.Add()([x, L.SpatialDropout1D(0.2)(L.GaussianDropout(0.2)(L.Dropout(0.3)(y)))]))
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(x)))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sizes", [(64,), (8, 8), (5, 13), (3, 5, 67)])
@pytest.mark.parametrize("batch", ["open", "known"])
def test_a_mask_is_the_same_after_it_was_packed(rows, sizes, batch):
    mask = np.random.default_rng(0).random((rows, *sizes)) < 0.3
    spec = tf.TensorSpec((None if batch == "open" else rows, *sizes), tf.bool)

    @tf.function(input_signature=[spec])
    def both(given):
        assert packed_masks.can_be_packed(given)
        stored = packed_masks.packed(given)
        assert stored.shape[1] == -(-np.prod(sizes) // 8)
        return stored, packed_masks.unpacked(stored, given.shape)

    stored, again = both(mask)
    np.testing.assert_array_equal(again, mask)
    assert stored.dtype == tf.uint8
    assert packed_masks.packed_bytes(tf.constant(mask), mask.size) == stored.shape.num_elements()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((None, None, 64), tf.bool), ((4, 8), tf.bool), (None, tf.bool), ((4, 64), tf.uint8), ((), tf.bool)],
)
def test_what_is_small_or_open_is_not_packed(shape, dtype):
    assert not packed_masks.can_be_packed(tf.TensorSpec(shape, dtype))


def split(model):
    return tfgc.plan(model, 4, strategy="uniform", segments=3)


@pytest.mark.gate
@pytest.mark.parametrize("mode", mostly("compiled", "graph", modes=[*MODES, "xla"]))
def test_gradients_and_states_are_those_of_plain_training(mode):
    def enable(model, **options):
        tfgc.enable(model, split(model), **options)

    assert_trains_alike(dropouts, enable, X, Y, mode)


@pytest.mark.parametrize("batch", mostly(None, modes=[4, None]))
def test_masks_are_drawn_once_a_step(batch):
    model = fresh(dropouts)
    counts = operations_of_step(model, X, split(model), (batch, 24, 32))
    # Of three blocks the last one is not run again; a mask of a number a channel is too small to be stored.
    assert counts[DRAW, "first"] == 9
    assert counts[DRAW, "replay"] == 2


class Chooses(L.Layer):
    """No graph copies its trace."""

    def call(self, x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: 2.0 * x, lambda: x)


def test_costs_count_masks_in_bits_and_no_numbers_drawn():
    graph = node_costs.annotate(Program(fresh(dropouts), 4))
    b, at = Buffers.of(graph), graph.position["dropout_1"]
    cost, elements = graph.costs[at], 4 * 24 * 32
    assert cost.result_bytes == elements // 8
    assert cost.saved_internal_bytes == (elements,)
    # Without draws, the numbers and what they are scaled to fall away.
    assert b.replay_peak[at] <= b.saving_peak[at] - 4 * elements
    assert cost.replay_flops < cost.flops


def test_nothing_is_taken_over_where_a_trace_cannot_be_copied():
    b = Buffers.of(node_costs.annotate(Program(fresh(lambda: dropouts(Chooses)), 4)))
    assert b.replay_peak == b.saving_peak


def blocks_of_dropout():
    x = inputs = keras.Input((64, 512))
    for _ in range(12):
        x = L.Dropout(0.2)(L.Dense(512, "relu")(x))
    model = keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(x)), name="blocks")
    model.compile("sgd", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def peak_of_blocks(plan):
    model = tfgc.enable(blocks_of_dropout(), tfgc.Plan.from_json(plan))
    return memory.peak(tf.function(model.train_step), (tf.ones((64, 64, 512)), tf.ones((64, 1))))


@pytest.mark.gate
def test_the_allocator_reports_what_was_predicted():
    # What is live is 0.92 of it; the rest is chunks, and what runs side by side: 0.92 and 0.95 were measured.
    # Which operations race is a property of the process: of 17 one took 0.895 and one 1.0.
    model = fresh(blocks_of_dropout)
    plan = tfgc.plan(model, 64)
    estimate = tfgc.estimate(model, 64, plan=plan)
    peak = statistics.median(memory.alone(peak_of_blocks, plan.to_json()) for _ in range(3))
    assert 0.9 < (peak + estimate.fixed_bytes) / estimate.allocated_bytes < 1.05
