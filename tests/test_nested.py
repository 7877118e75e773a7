"""Plans inside of plans: what is run how often, equal gradients, less memory, and JSON.

`again` and `keep` make segments of nodes, `nest` one of segments.
"""

import dataclasses
import random

import keras
import memory
import models
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, assert_equal, fresh, in_turn, noise, plain_steps, states, train
from models import again, halves, keep, nest, plan_for, step_of
from random_graphs import chain

import tfgc
from tfgc import Plan, PlanMismatchError, Segment
from tfgc._core.plan import describe
from tfgc._errors import OptionError

L = keras.layers
X, Y = noise(16, 8), [noise(16, 4, seed=2)]
THREE = pytest.mark.parametrize("mode", MODES)


def anyhow(nodes, rng):
    """Segments of any length and mode, nested or not, kept in the middle or recomputed at the end."""
    done = []
    while nodes:
        n = rng.randint(1, len(nodes))
        part, nodes = nodes[:n], nodes[n:]
        if rng.random() < 0.25:
            done.append(keep(*part))
        elif n == 1 or rng.random() < 0.1:
            done.append(again(*part))
        else:
            cut = rng.randint(1, n - 1)
            done.append(nest(*anyhow(part[:cut], rng), *anyhow(part[cut:], rng)))
    return done


def depth(segments):
    return max(0 if s.inner is None else 1 + depth(s.inner.segments) for s in segments)


def enable(model, split, x):
    """Enable what `split` makes of the operations of a model's step, and return the plan."""
    plan = tfgc.plan(model, len(x), strategy="keep_all")
    nodes = [name for segment in plan.segments for name in segment.nodes]
    plan = dataclasses.replace(plan, segments=tuple(split(nodes)), strategy="by hand", outlook=None)
    tfgc.enable(model, plan, verbose=0)
    return plan


def compare(build, x, y, mode, split, *, policy="float32"):
    jit = mode == "xla" or None
    plain = plain_steps(build, x, y, graph=True, jit_compile=jit)
    model = fresh(build)
    plan = enable(model, split, x)
    assert split is not halves or depth(plan.segments) > 0
    ours = train(model, x, y, graph=mode in ("graph", "xla"), jit_compile=jit)
    assert any(made.overhead > 0 for made in tfgc.status(model).plans)
    # The gradient of a bias before a normalization is zero but for rounding, by which plain ways differ as much.
    spread = [] if mode == "eager" else [plain_steps(build, x, y)]
    assert_equal(plain, ours, exact=mode == "eager", policy=policy, spread=spread)


BUILDS = [
    build for build in models.STATEFUL if build not in (models.masked, models.convolution_bias_before_normalization)
]
UNDER_XLA = [
    models.dropout,
    models.batch_normalization,
    models.auxiliary_losses,
    models.spectral_normalization,
    models.global_seed,
    models.embeddings,
]


def halved():
    """In the gate are the kinds of state that `UNDER_XLA` has, masks, and weights that are not used."""
    for case in in_turn([models.masked, *BUILDS, models.half_used, models.embeddings, models.attention]):
        in_gate = case.values[0] in (*UNDER_XLA, models.masked, models.half_used)
        yield pytest.param(*case.values, marks=case.marks if in_gate else pytest.mark.slow)


@pytest.mark.gate
@pytest.mark.parametrize(("build", "mode"), halved())
@pytest.mark.filterwarnings("ignore:(?s).*does not support masking:UserWarning")  # older Keras, of its own attention
def test_halves_of_halves_train_as_the_plain_model(build, mode):
    compare(build, models.inputs_of(build), Y, mode, halves)


@pytest.mark.gate
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(
            build, marks=[] if build in (models.spectral_normalization, models.embeddings) else pytest.mark.slow
        )
        for build in UNDER_XLA
    ],
)
def test_halves_of_halves_under_xla(build):
    compare(build, models.inputs_of(build), Y, "xla", halves)


@pytest.mark.gate
@pytest.mark.parametrize(("seed", "mode"), in_turn(range(3), first=1))
def test_any_nest_trains_as_the_plain_model(seed, mode):
    x, y = noise(4, 16, 16, 3), [noise(4, 16, 16, 4)]
    compare(models.unet, x, y, mode, lambda nodes: anyhow(nodes, random.Random(seed)))


@THREE
def test_many_small_ops_in_a_deep_nest(mode):
    compare(models.ops_as_layers, noise(8, 6), [noise(8, 4)], mode, halves)


def everything():
    return keras.Sequential(
        [
            keras.Input((8,)),
            L.Dense(8, activity_regularizer="l2"),
            L.Dropout(0.5),
            L.BatchNormalization(momentum=0.5),
            models.Penalised(),
            L.Dense(4, activation="tanh"),
            models.Noisy(),
            L.Dropout(0.5),
            L.Dense(4),
        ]
    )


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_the_backward_pass_writes_no_state_and_adds_no_loss(mode):
    model = fresh(everything)
    enable(model, halves, X)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X, training=True) ** 2) + tf.add_n(model.losses)
        before, losses = [np.array(v) for v in states(model)], [float(x) for x in model.losses]
        tape.gradient(loss, [v.value for v in model.trainable_variables])
        for a, b in zip(before, states(model), strict=True):
            np.testing.assert_array_equal(a, b)
        assert losses == [float(x) for x in model.losses]
        assert len(losses) == 3


def deep():
    def convolution():
        return L.Conv2D(8, 3, padding="same", activation="tanh")

    return keras.Sequential([keras.Input((32, 32, 8)), *(convolution() for _ in range(24))])


def pieces(nodes, n):
    width = -(-len(nodes) // n)
    return [again(*nodes[i : i + width]) for i in range(0, len(nodes), width)]


def one_level(nodes):
    return pieces(nodes, 2)


def two_levels(nodes):
    first, last = pieces(nodes, 2)
    return [nest(*pieces(first.nodes, 4)), *pieces(last.nodes, 4)]


def peak_of(split, mode):
    model = fresh(deep)
    enable(model, split, noise(16, 32, 32, 8))
    if mode in ("eager", "compiled"):
        step = step_of(model, None).python_function
    else:
        step = step_of(model, mode == "xla" or None)
    return memory.peak(step, noise(16, 32, 32, 8), steps=9, of=min)


# Of 24 activations one level holds a half, 12; two levels hold a cut, 3 inner ones and 3 inside; halves of halves some
# 5 cuts. On a busy machine a step may put gradients of weights off, so the step that puts off least is compared.
@pytest.mark.gate
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("eager", marks=pytest.mark.slow),
        pytest.param("compiled", marks=pytest.mark.slow),
        "graph",
        pytest.param("xla", marks=pytest.mark.slow),
    ],
)
def test_peak_falls_with_each_level(mode):
    splits = (one_level, two_levels) if mode == "eager" else (one_level, two_levels, halves)
    found = [memory.alone(peak_of, split, mode) for split in splits]
    assert max(found[1:]) < 0.8 * found[0]


NODES = ("n0", "n1", "n2", "n3", "n4", "n5")


def test_json_of_plans_inside_of_plans():
    graph = chain([1] * 6)
    options = {"budget": 1000, "keep": ["n1"], "why": None}
    three = Segment(
        ("n0", "n1"), stored_bytes=8, inside_bytes=16, work=3.5, inner=Plan((again("n0"), keep("n1")), "x", (), options)
    )
    plan = Plan((nest(three, nest(again("n2"), keep("n3"))), keep("n4", "n5")), "by hand", describe(graph), options, 8)
    plan.check(graph)
    again_read = Plan.from_json(plan.to_json())
    assert again_read == plan
    assert again_read.segments[0].inner.segments[0].inner.options == options
    assert depth(again_read.segments) == 2
    assert again_read.to_json() == plan.to_json()
    deepest = halves([f"n{i}" for i in range(64)])
    assert Plan.from_json(plan_for(chain([1] * 64), deepest).to_json()).segments == tuple(deepest)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([("n0",), ("n1",)], r"segment .* leaves out 'n2'"),
        ([("n0", "n2", "n1")], "'n2' would run before 'n1'"),
        ([("n0", "n1"), ("n1", "n2")], "'n1' is in it twice"),
        ([("n0", "n1"), ("n2", "n3")], "node 'n3' is not in the segment"),
        ([("n0", "n9")], "node 'n9' is not in the segment"),
        ([("x", "n0")], "node 'x' is not in the segment"),
        ([], "leaves out 'n0'"),
    ],
)
def test_inner_plans_that_do_not_fit_their_segment(groups, message):
    graph = chain([1] * 6)
    inner = Plan(tuple(again(*g) for g in groups), "by hand", ())
    bad = Segment(NODES[:3], inner=inner)
    for split in ([bad, keep(*NODES[3:])], [nest(bad, keep("n3")), keep("n4", "n5")]):
        with pytest.raises(PlanMismatchError, match=message):
            plan_for(graph, split).check(graph)


def test_a_node_from_before_the_segment_is_not_in_it():
    graph = chain([1] * 3)
    bad = Segment(("n1",), inner=Plan((again("n0", "n1"),), "by hand", ()))
    with pytest.raises(PlanMismatchError, match="'n0' is not in the segment"):
        plan_for(graph, [again("n0"), bad, keep("n2")]).check(graph)


def test_segments_whose_inner_plan_cannot_be():
    with pytest.raises(OptionError, match="mode 'keep'"):
        Segment(("n0",), "keep", inner=Plan((again("n0"),), "by hand", ()))
    with pytest.raises(OptionError, match="inner='sqrt' is not a Plan"):
        Segment(("n0",), inner="sqrt")
    with pytest.raises(OptionError, match=r"model=\(\)"):
        Segment(("n0",), inner=Plan((again("n0"),), "by hand", ("n0",)))
