"""Train the same model plainly and with tfgc, and judge whether the steps are equal.

All is compared with the plain step in `tf.function`. In mode "eager" a loop runs with TensorFlow's graph optimizer off
(`conftest.py`) and gives the same bits; in "compiled", which is such a loop, and in "graph" each gradient is within
`tol` of its norm.
"""

import dataclasses
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfgc
from tfgc._framework import graph_optimizer

MODES = ("eager", "compiled", "graph")
TOLERANCE = {"float32": 1e-5, "mixed_float16": 5e-3, "mixed_bfloat16": 5e-2, "float64": 1e-12}


class Step(NamedTuple):
    loss: float
    gradients: dict
    states: dict
    losses: list


def mean_squares(outputs, targets):
    return tf.add_n([tf.reduce_mean(tf.square(tf.cast(o, t.dtype) - t)) for o, t in zip(outputs, targets)])


def train(model, x, y, *, graph=False, jit_compile=None, call=None, steps=2, extra=(), lr=0.1, loss=mean_squares):
    """Run some steps of gradient descent and return what each of them showed."""
    call = call or model
    optimizer = keras.optimizers.SGD(lr)
    optimizer.build(model.trainable_variables)
    variables = list(model.trainable_variables)
    watched = [v.value for v in variables] + list(extra)

    def step():
        with tf.GradientTape() as tape:
            value = loss(tf.nest.flatten(call(x, training=True)), y)
            losses = [tf.cast(extra, value.dtype) for extra in model.losses]
            value = tf.add_n([value, *losses])
        gradients = tape.gradient(value, watched)
        pairs = [(g, v) for g, v in zip(gradients, variables) if g is not None]
        optimizer.apply_gradients(pairs)
        return value, gradients, losses

    if graph:
        step = tf.function(step, jit_compile=jit_compile)
    names = [v.path for v in variables] + [v.name for v in extra]
    record = []
    for _ in range(steps):
        value, gradients, losses = step()
        record.append(
            Step(
                float(value),
                {name: None if g is None else _sparse_or_dense(g) for name, g in zip(names, gradients)},
                {f"{i} {v.path}": np.array(v) for i, v in enumerate(states(model))},
                [float(extra) for extra in losses],
            )
        )
    return record


def states(model):
    """Every variable that a step may move, those that no list of Keras names included."""
    generator = keras.src.random.seed_generator.global_seed_generator()
    hidden = []
    for layer in model._flatten_layers():
        cell_states = getattr(layer, "states", None) if getattr(layer, "stateful", False) else None
        hidden += tf.nest.flatten(cell_states or [])
        hidden += layer.metrics_variables
    return [*model.variables, generator.state, *hidden]


def _sparse_or_dense(gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return ("sparse", gradient.indices.numpy(), gradient.values.numpy())
    return gradient.numpy()


def assert_equal(plain, ours, *, exact, policy="float32", allowed=0.0, trained=True, spread=()):
    """Judge step by step.

    Args:
        plain, ours: What `train` returned.
        exact: Compare bits; else the norm of each gradient's difference.
        policy: Keras's dtype policy, which says how large that may be.
        allowed: Another bound of it, relative to the gradient's norm, with `exact` too.
        spread: Records of plain training by other ways. Where plain training itself moves, twice as much is allowed.
        trained: Whether plain training must have a gradient that is not zero, without which nothing is proved.
    """
    assert len(plain) == len(ours) > 0
    for number, (a, b) in enumerate(zip(plain, ours)):
        assert a.gradients.keys() == b.gradients.keys()
        assert len(a.losses) == len(b.losses)
        scale = max([np.linalg.norm(_dense(g)) for g in a.gradients.values() if g is not None], default=0.0)
        assert scale > 0 or not trained, f"step {number}: plain training has no gradient"
        for name, g0 in a.gradients.items():
            g = b.gradients[name]
            where = f"step {number}, gradient of {name}"
            assert (g is None) == (g0 is None), where
            if g is None:
                continue
            assert isinstance(g, tuple) == isinstance(g0, tuple), f"{where}: sparse in one only"
            if isinstance(g, tuple):
                np.testing.assert_array_equal(g[1], g0[1], where)
            if exact and not allowed:
                np.testing.assert_array_equal(_dense(g), _dense(g0), where)
            else:
                tol = allowed or TOLERANCE[policy]
                error = np.linalg.norm(_summed(g) - _summed(g0))
                bound = tol * max(np.linalg.norm(_summed(g0)), 1e-3 * scale)
                bound = max(bound, _moved(_summed(g0), [_summed(other[number].gradients[name]) for other in spread]))
                assert error <= bound, f"{where}: {error} of {scale}"
        largest = max([np.linalg.norm(_dense(v)) for v in a.states.values() if v.dtype.kind == "f"], default=0.0)
        for name, v0 in a.states.items():
            where = f"step {number}, state {name}"
            if np.issubdtype(v0.dtype, np.integer) or (exact and not allowed):
                np.testing.assert_array_equal(b.states[name], v0, where)
            else:
                error, norm = np.linalg.norm(_dense(b.states[name]) - _dense(v0)), np.linalg.norm(_dense(v0))
                bound = TOLERANCE[policy] * max(norm, 1e-3 * largest)
                bound = max(bound, _moved(v0, [other[number].states[name] for other in spread]))
                assert error <= bound, f"{where}: {error} of {norm}"
        if exact and not allowed:
            np.testing.assert_array_equal(b.loss, a.loss, f"step {number}")
            np.testing.assert_array_equal(b.losses, a.losses, f"step {number}")
        else:
            expected = np.array([a.loss, *a.losses])
            moved = _moved(expected, [[other[number].loss, *other[number].losses] for other in spread])
            np.testing.assert_allclose([b.loss, *b.losses], expected, rtol=TOLERANCE[policy], atol=moved)


def _moved(value, others):
    """Twice the largest distance between a value and others."""
    return 2.0 * max([np.linalg.norm(_dense(other) - _dense(value)) for other in others], default=0.0)


def _summed(gradient):
    """The gradient, that of a row which occurs often in one: rounding decides which of its places is a maximum."""
    if not isinstance(gradient, tuple):
        return _dense(gradient)
    _, indices, values = gradient
    rows, places = np.unique(indices, return_inverse=True)
    sums = np.zeros((len(rows), *values.shape[1:]))
    np.add.at(sums, places, _dense(values))
    return sums


def _dense(gradient):
    values = gradient[2] if isinstance(gradient, tuple) else gradient
    return np.asarray(values, "float64")


def assert_same(plain, ours, tol, where, least=0.0):
    """Equal structures; floats apart by `tol` of their norm (0: equal), or of 0.001 of the largest one beside them."""
    if isinstance(plain, dict):
        assert list(plain) == list(ours), where
        norms = [_norm(value) for value in plain.values() if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
        for key, value in plain.items():
            assert_same(value, ours[key], tol, f"{where}, {key}", 1e-3 * max(norms, default=0.0))
    elif isinstance(plain, list) and any(isinstance(value, list | dict | np.ndarray) for value in plain):
        assert len(plain) == len(ours), where
        for number, (a, b) in enumerate(zip(plain, ours)):
            assert_same(a, b, tol, f"{where} {number}")
    elif np.asarray(plain).dtype.kind == "f":
        a, b = np.asarray(plain, "float64"), np.asarray(ours, "float64")
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b), where)
        error, allowed = (
            _norm(b - a if np.isfinite(a).all() else np.nan_to_num(b) - np.nan_to_num(a)),
            tol * max(_norm(a), least),
        )
        assert error <= allowed, f"{where}: differs by {error}, allowed {allowed}: {a} and {b}"
    else:
        np.testing.assert_array_equal(plain, ours, where)


def _norm(array):
    return np.linalg.norm(np.nan_to_num(np.asarray(array, "float64")))


def worst(plain, other):
    """The largest relative difference of a gradient between two records."""
    differences = [0.0]
    for a, b in zip(plain, other):
        for name, g0 in a.gradients.items():
            g = b.gradients[name]
            if g is None or g0 is None:
                differences.append(0.0 if (g is None) == (g0 is None) else np.inf)
                continue
            norm = np.linalg.norm(_dense(g0))
            difference = np.linalg.norm(_dense(g) - _dense(g0))
            differences.append(difference / norm if norm else np.inf if difference else 0.0)
    return max(differences)


_PLAIN = {}


def plain_steps(build, x, y, **settings):
    """`train` of a freshly built plain model, remembered: several tests are compared with one record."""
    arrays = [np.asarray(t) for t in tf.nest.flatten((x, y), expand_composites=True)]
    data = tuple((a.dtype.str, a.shape, a.tobytes()) for a in arrays)
    key = build, data, graph_optimizer.is_off(), keras.config.dtype_policy().name, tuple(sorted(settings.items()))
    if key not in _PLAIN:
        if len(_PLAIN) == 50:
            del _PLAIN[next(iter(_PLAIN))]
        _PLAIN[key] = train(fresh(build), x, y, **settings)
    return _PLAIN[key]


def in_pieces(model, x, segments=4):
    """A plan that cuts the operations of a model into so many pieces, which all run again but for the last one."""
    plan = tfgc.plan(model, example=(x,), strategy="keep_all")
    nodes = [name for segment in plan.segments for name in segment.nodes]
    width = -(-len(nodes) // segments)
    pieces = tuple(tfgc.Segment(tuple(nodes[i : i + width])) for i in range(0, len(nodes), width))
    return dataclasses.replace(plan, segments=pieces, strategy="by hand", outlook=None)


def check_enabled(build, x, y, mode, *, segments=4, policy="float32", allowed=0.0, spread=(), **settings):
    """Plain against enabled, both freshly built from the same seed."""
    plain = plain_steps(build, x, y, graph=True, **settings)
    model = fresh(build)
    tfgc.enable(model, in_pieces(model, x, segments), verbose=0)
    ours = train(model, x, y, graph=mode == "graph", **settings)
    assert any(made.overhead > 0 for made in tfgc.status(model).plans)
    assert_equal(plain, ours, exact=graph_optimizer.is_off(), policy=policy, allowed=allowed, spread=spread)
    return model


def check_recomputed(build, x, y, mode, *, policy="float32", allowed=0.0, **settings):
    """Plain in a graph against the whole model as one recomputed function, bits with the graph optimizer off."""
    plain = plain_steps(build, x, y, graph=True, **settings)
    model = fresh(build)
    ours = train(model, x, y, graph=mode == "graph", call=tfgc.recompute(model), **settings)
    assert_equal(plain, ours, exact=mode == "eager", policy=policy, allowed=allowed)
    return model


def in_turn(things, modes=MODES, first=0):
    """Parameters of all pairs. In the fast suite each thing meets one mode, by turns, and each mode every third thing.

    For what wraps that which other tests hold in every mode, or, by another mode to begin with, with other modes.
    """
    for i, thing in enumerate(things):
        for j, mode in enumerate(modes):
            yield pytest.param(thing, mode, marks=[] if (j - i - first) % len(modes) == 0 else pytest.mark.slow)


def mostly(*fast, modes=MODES):
    """All modes, or other parameters, of which some are in the fast suite."""
    return [pytest.param(mode, marks=[] if mode in fast else pytest.mark.slow) for mode in modes]


def fresh(build):
    """Build from the same seed and with the same names, Keras's global generator at its start."""
    policy = keras.config.dtype_policy()
    keras.utils.clear_session(free_memory=False)
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(7)
    return build()


def build_metrics(model, x, y, sample_weight=None):
    """Give compiled metrics their variables before `fit`, which otherwise traces its first step twice."""

    def one(data):
        return None if data is None else tf.nest.map_structure(lambda t: t[:1], data)

    model.compute_metrics(one(x), one(y), model(one(x), training=False), one(sample_weight))
    model.reset_metrics()


def noise(*shape, seed=1):
    return tf.constant(np.random.default_rng(seed).standard_normal(shape).astype("float32"))
