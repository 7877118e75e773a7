"""One layer, trained plainly and recomputed: what follows each call of Keras's `run_layer_test`.

The layer gets the inputs of Keras's test, each shifted by a trainable zero, so that gradients of inputs are seen, too.
Three steps of its plain run are compared with those of `recompute(layer)` and of `enable(model, layers=[layer])`, as
`equality` does: recomputed in eager code bit by bit with the plain `tf.function`, where TensorFlow's graph optimizer is
off, else within tolerance of it.
"""

import contextlib
import copy
import functools
import inspect
import math
import re
import warnings
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from equality import TOLERANCE, assert_equal, fresh, train
from keras.src.backend import set_keras_mask
from keras.src.testing import test_case

import tfgc
from tfgc._error_texts import one_line
from tfgc._framework import graph_optimizer

# How tfgc runs, in which loop, and the loop of the plain steps that it is compared with.
EXACT, TRACED = ("recompute", "eager", "off"), ("recompute", "graph", "graph")
COMPILED, ENABLED = ("enable", "eager", "graph"), ("enable", "graph", "graph")
# Each by itself in all four ways; masks and half precision in one of each loop and each function.
PLAIN, MASKED, HALF = [EXACT, TRACED, COMPILED, ENABLED], [EXACT, ENABLED], [TRACED, COMPILED]
# What a sum of up to eight terms may be off by if they come in another order, relative to its norm.
ROUNDINGS = 4 * 8 * float(np.finfo("float32").eps)

SLOW_IN_HALF = (keras.layers.STFTSpectrogram,)  # a half-precision convolution over whole signals, without a fast kernel


class Comparison(NamedTuple):
    """The outcome is "equal", "mismatch", "crash", or "plain" (that fails, or is too slow to be run).

    Equal but for the order of sums are "spread" (within twice what plain modes differ by) and "rounding".
    """

    what: str
    outcome: str
    words: str = ""
    kept: tuple = ()


class Probe(keras.Model):
    """Shifts dense inputs, calls the layer, and returns all that is a number of its outputs.

    `masked` is the rank of the masks that inputs get, 0 for none.
    """

    def __init__(self, layer, data, options, masked):
        super().__init__(autocast=False, name="probe")
        self.layer, self.options, self.masked = layer, options, masked
        self.shifts = [
            self.add_weight(shape=x.shape, initializer="zeros", dtype=x.dtype.name, name=f"input_{i}")
            for i, x in enumerate(keras.tree.flatten(data))
            if _is_dense(x)
        ]
        self.run = self.layer

    def call(self, data):
        shifts = iter(self.shifts)
        data = keras.tree.map_structure(lambda x: self._shifted(x, next(shifts)) if _is_dense(x) else x, data)
        outputs = self.run(**data, **self.options) if isinstance(data, dict) else self.run(data, **self.options)
        return [y for x in keras.tree.flatten(outputs) for y in _numbers(x)] or tf.zeros(())

    def _shifted(self, x, shift):
        x = x + tf.cast(shift, x.dtype)
        if self.masked and x.shape.rank > self.masked:
            sizes = x.shape[: self.masked]
            mask = tf.sequence_mask(tf.range(math.prod(sizes[:-1]), 0, -1) % sizes[-1] + 1, sizes[-1])
            set_keras_mask(x, tf.reshape(mask, sizes))
        return x


def compare(layer_cls, arguments, wrap=tfgc.recompute):
    """Yield a `Comparison` for each way, policy and mask; `arguments` are those of `run_layer_test`."""
    data, shape = arguments["input_data"], arguments["input_shape"]
    if data is None and shape is None:
        return
    if data is None:
        dtype = arguments["input_dtype"] or keras.tree.map_shape_structure(lambda _: "float32", shape)
        sparse, ragged = arguments["input_sparse"], arguments["input_ragged"]
        data = fresh(lambda: test_case.create_eager_tensors(shape, dtype, sparse, ragged))
    data = keras.tree.map_structure(_tensor, data)
    options, objects = arguments["call_kwargs"] or {}, arguments["custom_objects"] or {}
    policies = ["float32", "mixed_float16"] if arguments["run_mixed_precision_check"] else ["float32"]
    if layer_cls in SLOW_IN_HALF:
        policies.remove("mixed_float16")
        yield Comparison("mixed_float16", "plain", "three plain steps take more than 6 minutes on a CPU")
    for policy in policies:
        init = dict(arguments["init_kwargs"] or {})
        if policy != "float32":
            init["dtype"] = policy
        layer = layer_cls(**init)
        config = layer.get_config()

        def run(model, graph):
            return train(model, data, [tf.constant(0.5)] * 64, graph=graph, lr=1e-3)

        def build(masked, config=config):
            def probe():
                with keras.saving.custom_object_scope(objects):
                    made = Probe(layer_cls.from_config(copy.deepcopy(config)), data, options, masked)
                made(data, training=False)
                return made

            return fresh(probe)

        yield from _ways(build, run, PLAIN if policy == "float32" else HALF, policy, 0, wrap)
        rank = max([x.shape.rank for x in keras.tree.flatten(data) if _is_dense(x)], default=0)
        if layer.supports_masking and rank > 2 and policy == "float32":
            found = list(_ways(build, run, MASKED, policy, 2, wrap))
            if found[0].outcome == "plain" and rank > 3:
                found = list(_ways(build, run, MASKED, policy, rank - 1, wrap))
            yield from found


def _ways(build, run, ways, policy, masked, wrap):
    what = f"{policy}, masked" if masked else policy

    @functools.cache
    def plain(loop):
        with _optimized(loop):
            return run(build(masked), loop != "eager")

    try:
        steps = min(map(_finite, [plain(loop) for _, *loops in ways for loop in loops]))
    except Exception as error:
        yield Comparison(what, "plain", one_line(error))
        return
    if not steps:
        yield Comparison(what, "plain", "diverges in the first step")
        return
    for how, loop, baseline in ways:
        name = f"{how}, {loop}, {what}"
        with warnings.catch_warnings(record=True) as caught, _optimized(baseline):
            warnings.simplefilter("always")
            try:
                model = build(masked)
                if how == "recompute":
                    model.run = wrap(model.layer)
                else:
                    tfgc.enable(model, layers=[model.layer])
                found = run(model, loop == "graph")
            except Exception as error:
                yield Comparison(name, "crash", one_line(error))
                continue
        regularized = any(step.losses for step in found)
        kept = tuple(reason(w.message) for w in caught if issubclass(w.category, tfgc.NotReplayableWarning))
        yield Comparison(
            name, *_judge(lambda loop: plain(loop)[:steps], found[:steps], baseline, policy, regularized), kept
        )


def _optimized(loop):
    """What steps run in that are compared with a plain loop."""
    return graph_optimizer.off() if loop == "off" else contextlib.nullcontext()


def _finite(record):
    """How many steps plain training takes before it diverges: infinities cannot be compared."""
    for number, step in enumerate(record):
        values = [*step.gradients.values(), *step.states.values(), step.loss, *step.losses]
        if not all(np.isfinite(_dense(value)).all() for value in values if value is not None):
            return number
    return len(record)


def _judge(plain, found, baseline, policy, regularized):
    """The outcome, and the words of a mismatch."""
    try:
        assert_equal(plain(baseline), found, exact=baseline == "off", policy=policy, trained=False)
    except AssertionError as error:
        if baseline == "graph" and _within_spread(plain("graph"), plain("eager"), found, TOLERANCE[policy]):
            return "spread", ""
        # A penalty reads a weight once more, outside, or what the layer returns as it got it, inside: of three terms or
        # more the sum depends on their order.
        if baseline == "off" and regularized and _within_spread(plain("off"), plain("off"), found, ROUNDINGS):
            return "rounding", ""
        return "mismatch", " ".join(str(error).split())[:300]
    return "equal", ""


def _within_spread(plain, other, found, tolerance):
    """Whether each value is no further from `plain` than twice what `other`, plain in another mode, is."""
    for a, b, c in zip(plain, other, found, strict=True):
        groups = [[step.gradients, step.states, {"": step.loss}, dict(enumerate(step.losses))] for step in (a, b, c)]
        for one, two, three in zip(*groups):
            largest = max([np.linalg.norm(_dense(v)) for v in one.values() if v is not None], default=0.0)
            for name, value in one.items():
                if type(value) is not type(three[name]):
                    return False
                if value is not None:
                    value = _dense(value)
                    spread, distance = (np.linalg.norm(value - _dense(v[name])) for v in (two, three))
                    allowed = max(tolerance * max(np.linalg.norm(value), 1e-3 * largest), 2 * spread)
                    if not distance <= allowed:
                        return False
    return True


def arguments_of(function, args, kwargs):
    """Arguments of a call by name, with their defaults."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def reason(message):
    """Why something is kept, without names."""
    return re.sub(r"'[^']*'|\d+", "…", str(message).partition("not recomputed: ")[2] or str(message)).strip()[:200]


def _is_dense(x):
    return isinstance(x, tf.Tensor) and x.dtype.is_floating


def _tensor(x):
    return x if isinstance(x, tf.SparseTensor | tf.RaggedTensor) else tf.convert_to_tensor(x)


def _numbers(x):
    x = x.values if isinstance(x, tf.SparseTensor) else x.flat_values if isinstance(x, tf.RaggedTensor) else x
    if x.dtype.is_complex:
        return [tf.math.real(x), tf.math.imag(x)]
    return [x] if x.dtype.is_floating else []


def _dense(value):
    return np.asarray(value[2] if isinstance(value, tuple) else value, "float64")
