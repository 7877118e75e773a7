"""Models at random in steps that are planned as wholes: `fit` and steps of other kinds, with the bits of plain ones.

A step by a seed always is the same one. Half of the steps run by cuts at random, which no search would choose, the
others by the least plan or in a budget. More of them, and one alone:
`PYTHONPATH=.:tests python tests/random_steps.py fit 0 2000` and `... fit 17 18`.
"""

import argparse
import collections
import contextlib
import dataclasses
import gc
import random
import sys
import time
import traceback
import unittest.mock
import warnings

import keras
import numpy as np
import random_models
import tensorflow as tf
from equality import fresh, states
from models import Counter
from random_models import PlainError

import tfgc
from tfgc._framework import graph_optimizer
from tfgc._planning.step_plans import StepPlans
from tfgc._rewrite.recompute import Cut

ROWS = 64
WAYS = ("cuts", "cuts", "least", "budget")
OPTIMIZERS = (
    lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    lambda: keras.optimizers.Adam(0.01),
    lambda: keras.optimizers.AdamW(0.01, clipnorm=1.0),
    lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=1.0),
    lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=2),
    lambda: keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.9), centered=True),
)  # fmt: skip
LOSSES = {
    "mse": keras.losses.MeanSquaredError,
    "logits": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "softmax": keras.losses.SparseCategoricalCrossentropy,
    "sigmoid": keras.losses.BinaryCrossentropy,
}


def drawn(seed, most):
    """The source of a function that builds a model, that function, and what each output is trained for."""
    rng = random.Random(seed)
    writer = random_models.Writer(rng)
    losses = writer.write(rng.randint(2, most))
    source = "def build():\n" + "".join(f"    {line}\n" for line in writer.lines)
    names = {**vars(random_models), "Counter": Counter}
    exec(source, names)
    return source, names["build"], losses


def check(kind, seed, most=8):
    """Train a model plainly and rewritten, and compare bits; whether some of it ran twice.

    Raises:
        PlainError: If the model cannot be trained without tfgc, or not twice alike.
    """
    source, build, losses = drawn(seed, most)
    way = random.Random(seed).choice(WAYS)
    run = fitted if kind == "fit" else stepped
    try:
        plain, _ = run(kind, fresh(build), losses, seed, None)
    except Exception as error:
        raise PlainError(f"{type(error).__name__}: {error}") from error
    try:
        found, is_rewritten = run(kind, fresh(build), losses, seed, way)
        try:
            assert_same_bits(plain, found)
        except AssertionError:
            again, _ = run(kind, fresh(build), losses, seed, None)
            try:
                assert_same_bits(plain, again)
            except AssertionError as error:
                raise PlainError(f"plain differs from itself: {error}") from error
            raise
    except Exception as error:
        error.add_note(f"python tests/random_steps.py {kind} {seed} {seed + 1} --most {most}, {way}\n\n{source}")
        raise
    return is_rewritten


def assert_same_bits(plain, found):
    assert plain.keys() == found.keys()
    for name, one in plain.items():
        one, other = np.asarray(one), np.asarray(found[name])
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(other, one, name)


def fitted(kind, model, losses, seed, way):
    """Histories and all variables after `fit`, and whether the step was rewritten."""
    rng = random.Random(f"{kind} {seed}")
    rows = 2 * ROWS + rng.choice([0, 0, 5, ROWS // 2])
    x = [np.array(t) for t in tf.nest.flatten(random_models._inputs(model, rows))]
    y = [np.array(random_models._target(loss, rows, i)) for i, loss in enumerate(losses)]
    weights = [np.linspace(0.5, 2, rows, dtype="float32")] * len(y) if rng.random() < 0.3 else None
    scores = [["mae"] if loss == "mse" else ["accuracy"] for loss in losses]
    settings = {
        "loss": [LOSSES[loss]() for loss in losses],
        "steps_per_execution": rng.choice([1, 1, 1, 2]),
        "metrics": scores if rng.random() < 0.5 else None,
        "weighted_metrics": scores if weights and rng.random() < 0.5 else None,
    }
    make, frozen = rng.choice(OPTIMIZERS), rng.choice(model.layers) if rng.random() < 0.2 else None
    model.compile(make(), **settings)
    with planned(way, seed):
        if way:
            tfgc.enable(model, budget="55%" if way == "budget" else None, verbose=0)
        shown = model.fit(x, y, ROWS, sample_weight=weights, epochs=2, shuffle=False, verbose=0).history
        if frozen is not None:
            frozen.trainable = not frozen.trainable
            model.compile(model.optimizer, **settings)
            shown["later"] = model.train_on_batch(x, y, weights)
    variables = [*states(model), *model.optimizer.variables, *model.metrics_variables]
    shown |= {f"{i} {v.path}": np.array(v) for i, v in enumerate(variables)}
    return shown, bool(way) and any(plan.overhead > 0 for plan in tfgc.status(model).plans)


@contextlib.contextmanager
def planned(way, seed):
    """Let steps be cut at random, if that is the way; a budget that is impossible be the least one."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", tfgc.NothingSavedWarning)
        if way == "cuts":
            stack.enter_context(unittest.mock.patch.object(StepPlans, "least", lambda plans: at_random(plans, seed)))
        if way == "budget":
            within = StepPlans.within

            def possible(plans, room):
                try:
                    return within(plans, room)
                except tfgc.InfeasibleBudgetError:
                    return plans.least()

            stack.enter_context(unittest.mock.patch.object(StepPlans, "within", possible))
        yield


def at_random(plans, seed):
    """A plan with cuts at random, some of its segments kept and some cut again."""
    rng, step = random.Random(seed), plans.step
    forward = [i for i in step.order if step.ops[i].call == 0 and step.makes[i]]
    if not forward:
        return plans.plain("nothing to cut")

    def cuts(most, depth):
        behind = sorted(rng.sample(forward, min(len(forward), rng.randint(1, most))))
        nest = depth < 2 and rng.random() < 0.4
        made = [Cut(i, rng.random() < 0.2, tuple(cuts(3, depth + 1)) if nest else ()) for i in behind]
        moves = [depth == 0 and not cut.keep and rng.random() < 0.3 for cut in made]
        return [dataclasses.replace(cut, offload=offload) for cut, offload in zip(made, moves)]

    return plans._whole(plans._candidates.judged(cuts(8, 0)), "random")  # even one that saves nothing


def stepped(kind, model, losses, seed, way):
    """What three steps of a kind return and all variables after them, and whether the step was rewritten."""
    x = random_models._inputs(model, ROWS)
    y = [random_models._target(loss, ROWS, i) for i, loss in enumerate(losses)]
    optimizer = random.Random(f"{kind} {seed}").choice(OPTIMIZERS)()
    optimizer.build(model.trainable_variables)
    functions = [LOSSES[loss]() for loss in losses]

    def loss(x, y, training=True):
        outputs = tf.nest.flatten(model(x, training=training))
        parts = [function(a, b) for function, a, b in zip(functions, y, outputs, strict=True)]
        return tf.add_n([tf.cast(part, "float32") for part in [*parts, *(model.losses if training else ())]])

    step = STEPS[kind](model, loss, optimizer, random.Random(seed))
    shown = {}
    with planned(way, seed):
        run = tfgc.function(step, budget="55%" if way == "budget" else None, verbose=0) if way else tf.function(step)
        for i in range(3):
            results = tf.nest.flatten(run(x, y), expand_composites=True)
            shown |= {f"step {i}, result {n}": np.array(t) for n, t in enumerate(results)}
    variables = [*states(model), *optimizer.variables]
    shown |= {f"{i} {v.path}": np.array(v) for i, v in enumerate(variables)}
    return shown, bool(way) and any(plan.overhead > 0 for plan in run.status().traces)


def _applied(optimizer, gradients, variables):
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])
    return [g for g, _ in pairs]


def penalty(model, loss, optimizer, rng):
    """Gradients of gradients: their squares are added to the loss."""
    variables = model.trainable_variables

    def step(x, y):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                value = loss(x, y)
            slopes = [tf.convert_to_tensor(g) for g in inner.gradient(value, variables) if g is not None]
            total = value + 0.1 * tf.add_n([tf.reduce_sum(tf.cast(g, "float32") ** 2) for g in slopes])
        return value, total, _applied(optimizer, tape.gradient(total, variables), variables)

    return step


def persistent(model, loss, optimizer, rng):
    """Two gradients of one tape, of different values by different weights."""
    variables = list(model.trainable_variables)
    some = [v for v in variables if rng.random() < 0.6] or variables

    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            value = loss(x, y)
            other = tf.tanh(value) + 0.01 * tf.add_n([tf.reduce_sum(v.value**2) for v in some])
        first, second = tape.gradient(value, variables), tape.gradient(other, some)
        _applied(optimizer, first, variables)
        return value, other, second

    return step


def frozen(model, loss, optimizer, rng):
    """Parts of the model are frozen, and others are not watched."""
    for layer in model.layers:
        layer.trainable = layer.trainable and rng.random() < 0.6
    variables = [v for v in model.trainable_variables if rng.random() < 0.7]

    def step(x, y):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([v.value for v in variables])
            value = loss(x, y)
        gradients = tape.gradient(value, [v.value for v in variables])
        for gradient, v in zip(gradients, variables):
            if gradient is not None:
                v.assign_sub(tf.cast(0.01, v.dtype) * gradient)
        return value, [g for g in gradients if g is not None]

    return step


def accumulated(model, loss, optimizer, rng):
    """Two micro-batches, whose gradients are added."""
    variables = model.trainable_variables

    def step(x, y):
        half, total, values = ROWS // 2, [None] * len(variables), []
        for rows in (slice(0, half), slice(half, None)):
            with tf.GradientTape() as tape:
                value = loss(*tf.nest.map_structure(lambda t, rows=rows: t[rows], (x, y)))
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in tape.gradient(value, variables)]
            total = [g if t is None else t if g is None else t + g for t, g in zip(total, gradients)]
            values.append(value)
        return values, _applied(optimizer, total, variables)

    return step


def branch(model, loss, optimizer, rng):
    """The model runs once more in a branch of `tf.cond`, the gradient of both outside of it."""
    variables = model.trainable_variables

    def step(x, y):
        flag = optimizer.iterations % 2 == 0
        with tf.GradientTape() as tape:
            value = tf.cond(flag, lambda: loss(x, y), lambda: 0.5 * loss(x, y, training=False)) + loss(x, y)
        return value, _applied(optimizer, tape.gradient(value, variables), variables)

    return step


def whole_branch(model, loss, optimizer, rng):
    """After an update, another one runs in a branch of `tf.cond`."""
    variables = model.trainable_variables

    def both(x, y, scale):
        with tf.GradientTape() as tape:
            value = scale * loss(x, y)
        return value, [tf.convert_to_tensor(g) for g in _applied(optimizer, tape.gradient(value, variables), variables)]

    def step(x, y):
        first = both(x, y, 1.0)
        flag = tf.reduce_sum(first[0]) > tf.cast(optimizer.iterations, "float32") / 2
        return first, tf.cond(flag, lambda: both(x, y, 1.0), lambda: both(x, y, 0.5))

    return step


def loop(model, loss, optimizer, rng):
    """After two updates, others run in a `while` loop."""
    variables = model.trainable_variables

    def update(x, y):
        with tf.GradientTape() as tape:
            value = loss(x, y)
        _applied(optimizer, tape.gradient(value, variables), variables)
        return value

    def step(x, y):
        total = update(x, y) + update(x, y)
        for _ in tf.range(2):
            total += update(x, y)
        return total

    return step


STEPS = {
    "penalty": penalty, "persistent": persistent, "frozen": frozen, "accumulated": accumulated, "branch": branch,
    "whole_branch": whole_branch, "loop": loop,
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["fit", *STEPS])
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--most", type=int, default=8, help="most steps by which a model grows (default: 8)")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no model after this time")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    counts, began = collections.Counter(), time.monotonic()
    with graph_optimizer.off():
        for seed in range(given.first, given.end):
            if time.monotonic() - began > 60 * given.minutes:
                break
            counts["run"] += 1
            gc.collect()  # graphs are cycles
            try:
                counts["rewritten"] += check(given.kind, seed, given.most)
                counts["bit-equal"] += 1
            except PlainError as error:
                counts["plain fails"] += 1
                print(f"{given.kind} {seed}: {str(error)[:300]}", flush=True)
            except Exception as error:
                counts["wrong"] += 1
                print(f"{given.kind} {seed}:", flush=True)
                traceback.print_exception(error, limit=-8, file=sys.stdout)
            if counts["run"] % 20 == 0:
                print(given.kind, dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)
    print(given.kind, dict(counts), f"{time.monotonic() - began:.0f} s", flush=True)
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
