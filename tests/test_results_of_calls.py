"""Replays of plans by calls take small results of the first run over, and random masks in bits."""

import dataclasses

import keras
import pytest
import tensorflow as tf
from equality import MODES, assert_trains_alike, fresh, mostly, noise
from replays import operations_of_step

import tfgc
from tfgc._calls.call_plans import CallPlans
from tfgc._calls.replays import Piece
from tfgc._core.segments import Segment

L = keras.layers
X, Y = noise(4, 24, 64), [noise(4, 1, seed=2)]
DRAW = "StatelessRandomUniformV2"


class Block(L.Layer):
    """Statistics of two kinds, and masks of a multiple of eight elements and of another number."""

    def __init__(self, width=64, **options):
        super().__init__(**options)
        self.norms = L.BatchNormalization(), L.LayerNormalization()
        self.attention = L.MultiHeadAttention(1, width, dropout=0.2, use_bias=False)
        self.dense, self.dropout = L.Dense(width, "gelu"), L.Dropout(0.3)

    def call(self, x, training=None):
        y = self.norms[0](x, training=training)
        y = self.dropout(self.dense(self.attention(y, y[:, :21], training=training)), training=training)
        return self.norms[1](x + y)


class Branching(Block):
    """It calls functions, which are not copied into another graph."""

    def call(self, x, training=None):
        made = super().call(x, training=training)
        return tf.cond(tf.reduce_sum(x) > 1e9, lambda: -made, lambda: 1.0 * made)


class Stack(keras.Model):
    kind = Block

    def __init__(self, blocks=3, width=64):
        super().__init__()
        self.blocks = [self.kind(width) for _ in range(blocks)]
        self.head = L.Dense(1)

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x[:, 0])


class BranchingStack(Stack):
    kind = Branching


def stack():
    model = Stack()
    model(X)
    return model


def again(model, count=2):
    """The plan that recomputes the first blocks as a whole."""
    names = names_of(model)
    plan = tfgc.plan(model, example=(X, Y[0]))
    segments = [Segment((name,), *([] if i < count else ["keep"])) for i, name in enumerate(names)]
    return dataclasses.replace(plan, segments=tuple(segments), parts={}, outlook=None)


def names_of(model):
    name = "branching" if isinstance(model, BranchingStack) else "block"
    return [f"{name}_{i}" if i else name for i in range(len(model.blocks))]


@pytest.mark.gate
@pytest.mark.parametrize("mode", mostly("compiled", "graph", modes=[*MODES, "xla"]))
def test_gradients_and_states_are_those_of_plain_training(mode):
    def enable(model, **options):
        tfgc.enable(model, again(model), **options)

    assert_trains_alike(stack, enable, X, Y, mode)


@pytest.mark.parametrize("batch", mostly(4, modes=[4, None]))
def test_masks_and_statistics_are_made_once_a_step(batch):
    model = fresh(stack)
    counts = operations_of_step(model, X, again(model), (batch, 24, 64))
    assert (counts[DRAW, "first"], counts[DRAW, "replay"]) == (6, 0)
    assert counts["SquaredDifference", "first"] == 6
    assert counts["Mean", "first"] > 6
    assert (counts["SquaredDifference", "replay"], counts["Mean", "replay"]) == (0, 0)


def test_calls_that_no_graph_copies_make_all_again():
    model = fresh(BranchingStack)
    model(X)
    counts = operations_of_step(model, X, again(model))
    assert counts[DRAW, "first"] + counts[DRAW, "replay"] == 10


def replay_of(kind):
    """What a step does, and the replay of the second block in it."""
    model = fresh(kind)
    plans = CallPlans(model, (X, Y[0]))
    (call,) = [call for call in plans.step.root.within() if call.layer is model.blocks[1]]
    return plans.step, plans.simulator.replay(Piece((call,)))


def test_a_replay_is_predicted_to_read_bits_and_statistics():
    step, replay = replay_of(Stack)
    masks, bits = [4 * 24 * 21, 4 * 24 * 64], [4 * 24 * 21 // 8, 4 * 24 * 64 // 8]
    assert sorted(step.sizes[b] for b in replay.unpacked.values()) == bits
    assert sorted(sum(step.sizes[b] for b in step.operations[i].makes) for i in replay.unpacked) == masks
    assert replay.inputs.issuperset(replay.unpacked.values())
    # Mean and variance of each sample's positions, and of each channel.
    assert {step.sizes[b] for b in step.small & replay.inputs} == {4 * 4 * 24, 4 * 64}
    uncopied = replay_of(BranchingStack)[1]
    assert not uncopied.unpacked
    assert replay.work < uncopied.work


def test_under_xla_masks_are_drawn_again():
    model = fresh(Stack)
    step = CallPlans(model, (X, Y[0]), xla=True).step
    assert step.small
    assert not step.packed
