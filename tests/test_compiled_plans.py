"""Plans of steps that XLA compiles: the compiler says what they need, and is asked a few times at most."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfgc
from tfgc._framework import xla
from tfgc._step.fused import fused, moved
from tfgc._step.step import Op, Step

X = np.random.default_rng(0).random((512, 64), "float32")


def chain(seed, **options):
    """A step of many products, as XLA runs it."""
    weights = [tf.Variable(tf.random.stateless_normal((64, 64), (seed, i)) / 8) for i in range(8)]

    def step(x):
        with tf.GradientTape() as tape:
            for w in weights:
                x = tf.tanh(x @ w)
            loss = tf.reduce_mean(x**2)
        return loss, tape.gradient(loss, weights)

    return tfgc.function(step, jit_compile=True, verbose=0, **options), tf.function(step, jit_compile=True)


@pytest.fixture
def said(monkeypatch):
    """Let figures be said in place of XLA's; those that were asked for."""
    asked = []

    def become(figures):
        figures = iter(figures)

        def next_figure(function, specs):
            asked.append(next(figures))
            return asked[-1]

        monkeypatch.setattr(xla, "temporary_bytes_of", next_figure)
        return asked

    return become


def test_what_a_step_needs_is_what_xla_lays_out_and_results_are_those_of_xla():
    run, plain = chain(1)
    x = tf.constant(X)
    np.testing.assert_allclose(run(x)[0], plain(x)[0], rtol=1e-5)
    for ours, theirs in zip(run(x)[1], plain(x)[1]):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    (now,) = run.status().traces
    concrete = plain.get_concrete_function(x)
    assert now.plain_bytes - now.held_bytes == xla.temporary_bytes_of(concrete, [tf.TensorSpec(X.shape)])
    assert now.needed_bytes < now.plain_bytes


def test_of_the_plans_that_are_compiled_the_least_runs(said):
    asked = said([9_000_000, 5_000_000, 4_000_000, 1])
    x = tf.constant(X[:448])
    run, _ = chain(2)
    run(x)
    (now,) = run.status().traces
    assert now.needed_bytes - now.held_bytes == min(asked)
    assert now.plain_bytes - now.held_bytes == 9_000_000
    assert len(asked) <= 3
    count = len(asked)
    chain(3)[0](x)  # the same step of other variables is known
    assert len(asked) == count


def test_nothing_is_compiled_where_one_candidate_is_enough(said):
    asked = said([])
    chain(4, compile_candidates=1)[0](tf.constant(X[:256]))
    assert asked == []
    with pytest.raises(tfgc.OptionError, match="compile_candidates=0: must be an integer >= 1"):
        tfgc.enable(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), compile_candidates=0)


def test_a_plan_that_is_compiled_to_more_than_the_budget_is_corrected(said):
    asked = said([2_000_000, 1_300_000, 1_100_000])
    run, _ = chain(5, budget="60%")
    run(tf.constant(X[:384]))
    (now,) = run.status().traces
    assert now.needed_bytes - now.held_bytes == 1_100_000
    assert len(asked) == 3


def test_where_no_plan_fits_the_least_that_was_compiled_is_named(said):
    said(itertools.chain([2_000_000], itertools.repeat(1_900_000)))
    run, _ = chain(6, budget="60%")
    with pytest.raises(tfgc.InfeasibleBudgetError) as caught:
        run(tf.constant(X[:128]))
    assert caught.value.least > 1_900_000


def test_what_reads_a_concatenation_late_reads_its_parts():
    ops = {
        0: Op("a", "Conv2D", sizes=(400_000,)),
        1: Op("b", "Conv2D", sizes=(400_000,)),
        2: Op("both", "ConcatV2", ((0, 0), (1, 0)), sizes=(800_000,)),
        3: Op("active", "Relu", ((2, 0),), sizes=(800_000,)),
        4: Op("sum", "AddV2", ((0, 0), (1, 0)), sizes=(400_000,)),
        5: Op("mean", "Mean", ((3, 0),), sizes=(4,)),
        6: Op("product", "Conv2D", ((4, 0),), sizes=(400_000,)),
    }
    step = Step(ops, tuple(ops), ((5, 0), (6, 0)))
    seen = fused(step).ops
    assert moved(step) == {2}
    assert seen[5].inputs == ((0, 0), (1, 0))  # behind the activation, too
    assert (seen[2].sizes, seen[3].sizes, seen[4].sizes) == ((0,), (0,), (400_000,))
