"""The replay starts no earlier than its gradient and is merged with nothing.

By the allocator's peak in graph mode, and under XLA by the number of operations
in the optimised HLO too: without a fence the peak is the plain one.
"""

import re

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, noise
from models import step_of

import tfgc


def deep():
    return keras.Sequential(
        [keras.Input((32, 32, 8)), *(keras.layers.Conv2D(8, 3, padding="same", activation="tanh") for _ in range(16))]
    )


def wide():
    return keras.Sequential([keras.Input((1500,)), *(keras.layers.Dense(1500, use_bias=False) for _ in range(6))])


INPUTS = {deep: (32, 32, 32, 8), wide: (2, 1500)}


def made(build, segments, jit_compile):
    """A step of the plain model (`segments` 0) or of the one run in so many segments, and its input."""
    model = fresh(build)
    if segments:
        tfgc.enable(model, tfgc.plan(model, strategy="uniform", segments=segments))
    return step_of(model, jit_compile), noise(*INPUTS[build])


def peak_of(build, segments, jit_compile):
    return memory.peak(*made(build, segments, jit_compile))


@pytest.mark.gate
@pytest.mark.parametrize("jit_compile", [None, pytest.param(True, marks=pytest.mark.gate)], ids=["graph", "xla"])
def test_recomputed_step_peaks_far_below_the_plain_one(jit_compile):
    plain, ours = (memory.alone(peak_of, deep, segments, jit_compile) for segments in (0, 4))
    assert ours < 0.65 * plain


@pytest.mark.gate
def test_replayed_operations_survive_in_the_optimised_hlo():
    """Sixteen tanh plain; all but the kept segment's four run a second time, the last of each segment's
    replay excepted, whose value is its output and is stored as the next cut."""

    def count(step, x):
        hlo = step.experimental_get_compiler_ir(x)(stage="optimized_hlo")
        return len(re.findall(r"\btanh\(", hlo))

    plain, ours = (count(*made(deep, segments, True)) for segments in (0, 4))
    assert plain == 16
    assert 16 + 9 <= ours <= 16 + 12


def test_an_overflow_reaches_the_gradients_as_in_plain_xla():
    def build():
        return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(4))])

    plain, ours = fresh(build), fresh(build)
    tfgc.enable(ours, strategy="uniform")
    x = noise(2, 4) * 1e30
    expected = [np.isfinite(g) for g in step_of(plain, True)(x)]
    for a, b in zip(expected, step_of(ours, True)(x), strict=True):
        np.testing.assert_array_equal(a, np.isfinite(b))
    assert {bool(a.all()) for a in expected} == {True, False}


def test_branches_of_a_replay_read_a_sparse_tensor():
    def build():
        inputs = keras.Input((10,), sparse=True)
        x = keras.layers.Add(name="sum")([keras.layers.Dense(8)(inputs) for _ in range(3)])
        return keras.Model(inputs, keras.layers.Dense(1)(x))

    plain, ours = fresh(build), fresh(build)
    tfgc.enable(ours, tfgc.plan(ours, strategy="manual", keep=["sum"]))
    x = tf.sparse.from_dense(noise(2, 10))
    for a, b in zip(step_of(plain, None)(x), step_of(ours, None)(x), strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(a), tf.convert_to_tensor(b), rtol=1e-6)


@pytest.mark.parametrize("jit_compile", [None, pytest.param(True, marks=pytest.mark.gate)], ids=["graph", "xla"])
def test_the_fence_copies_no_weights(jit_compile):
    """`tf.recompute_grad` adds a value to every argument, a copy of each. Here weights are all there is."""
    weight = 1500 * 1500 * 4
    plain, ours = (memory.alone(peak_of, wide, segments, jit_compile) for segments in (0, 3))
    assert ours < plain + weight / 2
