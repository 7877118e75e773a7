"""Keras models at random, each as a script that builds one and checks that a plan changes nothing but memory.

`scripts` draws them. The script of an example is what runs, so that a failing one can be run again alone:
`PYTHONPATH=.:tests python script.py`.
"""

import contextlib
import dataclasses
import random
import re

import keras
import numpy as np
import tensorflow as tf
from equality import assert_equal, fresh, train
from hypothesis import strategies as st

import tfgc
from tfgc import strategies
from tfgc._framework import graph_optimizer
from tfgc._tracing import keras_graph

L = keras.layers
# Bits are compared in the first two, where steps run as they were traced; a plain step runs in a graph.
MODES = ("eager", "graph", "optimized")
EPS = float(np.finfo("float32").eps)

# Layers of the user's own


class Noisy(L.Layer):
    """Draws from Keras's global generator, which is no variable of the model."""

    def call(self, x):
        return x * (1 + 0.1 * keras.random.normal((x.shape[-1],), dtype=self.compute_dtype))


class Penalised(L.Layer):
    """Adds a loss in `call`."""

    def call(self, x):
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
        return x * 0.9


class Block(L.Layer):
    """A subclassed block: layers in a row, maybe around a residual."""

    def __init__(self, parts, residual=False, **kwargs):
        super().__init__(**kwargs)
        self.parts, self.residual = list(parts), residual

    def call(self, x, training=None):
        y = x
        for part in self.parts:
            y = part(y)
        return keras.ops.add(x, keras.ops.cast(y, x.dtype)) if self.residual else y


class ModelBlock(keras.Model):
    """A subclassed model inside of another."""

    def __init__(self, parts):
        super().__init__()
        self.parts = list(parts)

    def call(self, x, training=None):
        for part in self.parts:
            x = part(x)
        return x


class Whole(keras.Model):
    """A subclassed model of everything."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.built = True

    def call(self, x, training=None):
        return self.inner(x, training=training)


# The kinds of layers: templates of source; U is the size of the last dimension, A an activation, R a rate.
PROBABILITIES = ("sigmoid", "softmax")  # Keras and tfgc look behind them, for logits
ACTIVATIONS = (*PROBABILITIES * 2, "relu", "tanh", "silu", "gelu", "elu", "softplus", "linear")
ANY = (
    "L.Dense(U, activation=A)",
    "L.Dense(U, activation=A)",
    "L.Dense(U, kernel_regularizer='l2', activity_regularizer='l2')",
    "L.BatchNormalization(momentum=0.5)",
    "L.LayerNormalization()",
    "L.UnitNormalization()",
    "L.GroupNormalization(2)",
    "L.Dropout(R)",
    "L.GaussianNoise(R)",
    "L.GaussianDropout(R)",
    "L.AlphaDropout(R)",
    "L.Activation(A)",
    "L.Activation('sigmoid')",
    "L.Softmax()",
    "L.ReLU()",
    "L.LeakyReLU()",
    "L.PReLU()",
    "L.Rescaling(0.5, offset=0.1)",
    "L.ActivityRegularization(l2=0.01)",
    "L.SpectralNormalization(L.Dense(U))",
    "L.Lambda(lambda x: keras.ops.sin(x) * 2.0)",
    "Noisy()",
    "Counter()",
    "Penalised()",
)
SERIES = (
    "L.Conv1D(U, 3, padding='same', activation=A)",
    "L.Conv1D(U, 3, padding='same', groups=2, activation=A)",
    "L.SeparableConv1D(U, 3, padding='same')",
    "L.Conv1DTranspose(U, 3, padding='same')",
    "L.LSTM(U, return_sequences=True)",
    "L.GRU(U, return_sequences=True)",
    "L.SimpleRNN(U, return_sequences=True, dropout=R)",
    "L.Bidirectional(L.LSTM(U, return_sequences=True), merge_mode='sum')",
    "L.TimeDistributed(L.Dense(U, activation=A))",
    "L.SpatialDropout1D(R)",
    "L.MaxPooling1D(2, 1, padding='same')",
    "L.AveragePooling1D(3, 1, padding='same')",
)
IMAGES = (
    "L.Conv2D(U, 3, padding='same', activation=A)",
    "L.Conv2D(U, 3, padding='same', activation=A)",
    "L.Conv2D(U, 3, padding='same', groups=2, activation=A)",
    "L.DepthwiseConv2D(3, padding='same')",
    "L.SeparableConv2D(U, 3, padding='same')",
    "L.Conv2DTranspose(U, 3, padding='same', activation=A)",
    "L.MaxPooling2D(2, 1, padding='same')",
    "L.AveragePooling2D(3, 1, padding='same')",
    "L.SpatialDropout2D(R)",
    "L.RandomFlip()",
    "L.RandomContrast(0.3)",
    "L.RandomTranslation(0.2, 0.2)",
)
PAIRS = {  # layers that are called on two tensors
    "L.MultiHeadAttention(2, 4, dropout=R)": "{0}, {1}",
    "L.GroupQueryAttention(4, 2, 2)": "{0}, {1}",
    "L.Attention(use_scale=True)": "[{0}, {1}]",
    "L.AdditiveAttention()": "[{0}, {1}]",
}
OPS = (
    "keras.ops.tanh({0})",
    "{0} * 2.0",
    "1.0 - {0}",
    "keras.ops.sigmoid({0})",
    "keras.activations.sigmoid({0})",
    "keras.ops.softmax({0})",
    "keras.ops.silu({0})",
    "keras.ops.square({0})",
)
MERGES = (
    "L.Add()([{0}, {1}])",
    "L.Multiply()([{0}, {1}])",
    "L.Average()([{0}, {1}])",
    "L.Maximum()([{0}, {1}])",
    "{0} + {1}",
    "{0} * {1}",
    "{0} - keras.ops.sigmoid({1})",
)
TO_FLAT = {
    2: ("L.Flatten()", "L.GlobalAveragePooling1D()", "L.GlobalMaxPooling1D()", "L.LSTM(4)", "L.GRU(4)"),
    3: ("L.Flatten()", "L.GlobalAveragePooling2D()", "L.GlobalMaxPooling2D()"),
}
INPUTS = ("(8,)", "(5, 6)", "(4, 4, 4)", "tokens")
NO_XLA = ("RandomTranslation",)
# For each way to end: what is applied to Dense(3), and the loss.
HEADS = {
    "mse": ("{0}",),
    "logits": ("{0}",),
    "softmax": (
        "L.Softmax()({0})",
        "L.Activation('softmax')({0})",
        "keras.ops.softmax({0})",
        "keras.activations.softmax({0})",
        "L.Reshape((3,))(L.Softmax()({0}))",
        "L.Dropout(0.0)(L.Activation('softmax', dtype='float32')({0}))",
        "Block([L.Softmax()])({0})",
    ),
    "sigmoid": (
        "L.Activation('sigmoid')({0})",
        "keras.ops.sigmoid({0})",
        "keras.activations.sigmoid({0})",
        "L.Activation('sigmoid', dtype='float32')({0})",
        "Block([L.Activation('sigmoid')])({0})",
    ),
}


class Writer:
    """Writes the body of a function that builds a model, line by line."""

    def __init__(self, rng):
        self.rng, self.lines, self.count = rng, [], 0
        self.live, self.read, self.layers = [], set(), []  # tensors with their shapes; layers with two shapes
        self.dtype = rng.choice([None] * 7 + ["mixed_float16", "mixed_float16", "float64"])

    def name(self, letter):
        self.count += 1
        return f"{letter}{self.count}"

    def add(self, expression, shape):
        name = self.name("x")
        self.read.update(re.findall(r"\b[ix]\d+\b", expression))
        self.lines.append(f"{name} = {expression}")
        self.live.append((name, shape))
        return name, shape

    def input(self):
        kind = self.rng.choice(INPUTS)
        name = self.name("i")
        if kind == "tokens":
            self.lines.append(f"{name} = keras.Input((5,), dtype='int32')")
            masked = self.rng.random() < 0.5
            self.add(f"L.Embedding(7, 6, mask_zero={masked})({name})", (5, 6))
        else:
            self.lines.append(f"{name} = keras.Input({kind})")
            self.live.append((name, eval(kind)))
        return name

    def layer(self, shape, same=False):
        """The source of a layer for tensors of a shape, and the shape of what it makes."""
        templates = ANY * (1 if len(shape) > 1 else 2) + {1: (), 2: SERIES * 2, 3: IMAGES * 2}[len(shape)]
        template = self.rng.choice(templates)
        size = shape[-1] if same else self.rng.choice((4, 6, 8))
        if ("GroupNorm" in template or "groups=2" in template) and shape[-1] % 2:
            template = "L.LayerNormalization()"
        filled = {"U": str(size), "A": repr(self.rng.choice(ACTIVATIONS)), "R": "0.3"}
        source = re.sub(r"\b[UAR]\b", lambda found: filled[found[0]], template)
        if self.dtype and source.startswith("L.") and self.rng.random() < 0.4:
            nested = any(word in source for word in ("Lambda", "Spectral", "Bidirectional", "TimeDistributed"))
            source = source if nested else f"{source[:-1]}{', ' if source[-2] != '(' else ''}dtype='{self.dtype}')"
        return source, (*shape[:-1], size) if "(U" in template else shape

    def held(self, source, given, made):
        """A variable that holds a layer, so that it can be shared and frozen."""
        name = self.name("l")
        self.lines.append(f"{name} = {source}")
        self.layers.append((name, given, made))
        return name

    @property
    def unread(self):
        return [one for one in self.live if one[0] not in self.read]

    def pick(self):
        return self.rng.choice(self.unread if self.unread and self.rng.random() < 0.7 else self.live)

    def step(self):
        rng = self.rng
        x, shape = self.pick()
        kind = rng.choice(
            ["layer"] * 6 + ["op", "op", "merge", "merge", "residual", "shared", "nested", "block", "flat", "pair"]
        )
        alike = [name for name, other in self.live if other == shape and name != x]
        shared = [(name, made) for name, given, made in self.layers if given == shape]
        if kind == "op":
            self.add(rng.choice(OPS).format(x), shape)
        elif kind == "merge" and alike:
            self.add(rng.choice(MERGES).format(x, rng.choice(alike)), shape)
        elif kind == "merge":
            others = [(name, other) for name, other in self.live if other[:-1] == shape[:-1]]
            other, its_shape = rng.choice(others)
            joined = (*shape[:-1], shape[-1] + its_shape[-1])
            source, made = self.layer(joined)
            self.add(f"{source}(L.Concatenate()([{x}, {other}]))", made)
        elif kind == "residual":
            first, _ = self.layer(shape, same=True)
            second, _ = self.layer(shape, same=True)
            self.add(f"{x} + {second}({first}({x}))", shape)
        elif kind == "shared" and shared:
            name, made = rng.choice(shared)
            self.add(f"{name}({x})", made)
        elif kind == "nested":
            inner, y, made = self.name("i"), None, shape
            self.lines.append(f"{inner} = keras.Input({shape})")
            y = inner
            for _ in range(rng.randint(1, 3)):
                source, made = self.layer(made)
                y = f"{source}({y})"
            if made == shape and rng.random() < 0.5:
                y = f"{y} + {inner}"
            model = self.held(f"keras.Model({inner}, {y})", shape, made)
            self.add(f"{model}({x})", made)
        elif kind == "block":
            parts, made = [], shape
            residual = rng.random() < 0.5
            for _ in range(rng.randint(1, 3)):
                source, made = self.layer(made, same=residual)
                parts.append(source)
            row = ", ".join(parts)
            source = f"Block([{row}], {residual})" if residual or rng.random() < 0.7 else f"ModelBlock([{row}])"
            self.add(f"{self.held(source, shape, made)}({x})", made)
        elif kind == "flat" and len(shape) > 1:
            self.flat(x, shape)
        elif kind == "flat":
            self.add(f"L.RepeatVector(3)({x})", (3, *shape))
        elif kind == "pair" and len(shape) == 2:
            source = rng.choice(list(PAIRS))
            given = PAIRS[source].format(x, rng.choice([x, *alike]))
            made = f"{source.replace('=R', '=0.2')}({given})"
            # Attention takes masks off what it is called on, and residual connections rely on that.
            self.add(f"L.Add()([{x}, {made}])" if rng.random() < 0.5 else made, shape)
        else:
            source, made = self.layer(shape)
            self.add(f"{self.held(source, shape, made)}({x})", made)

    def flat(self, x, shape):
        if len(shape) == 1:
            return x
        source = self.rng.choice(TO_FLAT[len(shape)])
        size = int(np.prod(shape)) if "Flatten" in source else 4 if "(4)" in source else shape[-1]
        return self.add(f"{source}({x})", (size,))[0]

    def write(self, steps):
        rng = self.rng
        inputs = [self.input() for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        for _ in range(steps):
            self.step()
        unread = self.unread[-3:]
        # Few are left out; some are outputs and are read.
        ends = unread + [one for one in self.live if one not in unread and rng.random() < 0.1][:1]
        heads, losses = [], []
        for x, shape in ends:
            loss = rng.choice(list(HEADS))
            logits, _ = self.add(f"L.Dense(3)({self.flat(x, shape)})", (3,))
            heads.append(rng.choice(HEADS[loss]).format(logits))
            losses.append(loss)
        for name, _, _ in self.layers:
            if rng.random() < 0.1:
                self.lines.append(f"{name}.trainable = False")
        given = inputs[0] if len(inputs) == 1 else f"[{', '.join(inputs)}]"
        made = f"keras.Model({given}, [{', '.join(heads)}])"
        self.lines.append(f"return {made}")
        return losses


WAYS = ("random cuts",) * 4 + ("strategy",) * 4 + ("layers", "recompute", "first call", "whole")


@st.composite
def scripts(draw, modes=MODES, most=8):
    """The source of an example.

    Only the number of steps is drawn by hypothesis, and shrinks; the rest comes from a seed that it draws.
    """
    rng = draw(st.randoms(use_true_random=True))
    mode, batch, way = rng.choice(modes), rng.choice([1, 2, 3, 3, 5, 7]), rng.choice(WAYS)
    writer = Writer(rng)
    losses = writer.write(draw(st.integers(2, most)))
    if mode == "xla" and any(word in line for line in writer.lines for word in NO_XLA):
        mode = "graph"
    seed = rng.randrange(1000)
    if way == "strategy":
        # On one device nothing is offloaded, and XLA refuses it.
        way = rng.choice([name for name in strategies.available() if name not in ("hybrid", "manual", "offload")])
    body = "\n".join(f"    {line}" for line in writer.lines)
    return (
        f"from models import Counter\nfrom random_models import *\n\n\ndef build():\n{body}\n\n\n"
        f"check(build, batch={batch}, losses={losses}, mode={mode!r}, way={way!r}, seed={seed})\n"
    )


def run(script):
    """Run the script of an example; what it raises says the script."""
    try:
        exec(compile(script, "random model", "exec"), {})
    except Exception as error:
        error.add_note(f"Run this with PYTHONPATH=.:tests:\n\n{script}")
        raise


class PlainError(Exception):
    """Keras or TensorFlow cannot train the model without tfgc."""


def check(build, *, batch, losses, mode, way, seed):
    """Train a model plainly and by a plan, and compare.

    Args:
        build: Makes the model.
        batch: Its batch size.
        losses: For each output a key of `HEADS`.
        mode: How the steps run.
        way: A strategy, or what else of `WAYS` is recomputed.
        seed: Of what is chosen at random.
    """
    whole = (lambda: Whole(build())) if way == "whole" else build
    is_exact = mode in ("eager", "graph")
    with graph_optimizer.off() if is_exact else contextlib.nullcontext():
        _check(build, whole, batch, losses, mode, is_exact, way, seed)


def _check(build, whole, batch, losses, mode, is_exact, way, seed):
    plain_mode = "xla" if mode == "xla" else "graph"
    try:
        model = fresh(build)
        x, y = _inputs(model, batch), [_target(loss, batch, i) for i, loss in enumerate(losses)]
        settings = {"steps": 2, "lr": 0.01, "loss": _loss(losses)}
        plain = train(fresh(whole), x, y, **_of_mode(plain_mode), **settings)
    except Exception as error:
        raise PlainError(f"{type(error).__name__}: {error}") from error
    ours = fresh(whole)
    call = _switched(ours, way, batch, mode, random.Random(seed), x)
    found = train(ours, x, y, call=call, **_of_mode(mode), **settings)
    half = any(layer.compute_dtype == "float16" for layer in ours._flatten_layers())
    judge = {"policy": "mixed_float16" if half else "float32", "trained": False}
    if is_exact:
        try:
            assert_equal(plain, found, exact=True, **judge)
            return
        except AssertionError:
            # What several outputs add to the gradient of a weight, a tape adds in another order in each run. Around
            # layers that are recomputed alone it adds as eager code does, and what comes from inside of one first.
            eager_around = way == "layers" and mode == "eager"
            if not (eager_around or (_is_summed_anew(model) and (way == "layers" or len(model.outputs) > 1))):
                raise
    try:
        assert_equal(plain, found, exact=False, **judge)
    except AssertionError:
        # Ill-conditioned: plain training itself moves that much, by mode, or where inputs and weights are rounded anew.
        others = [other for other in ("eager", "graph") if other != plain_mode]
        spread = [train(fresh(whole), x, y, **_of_mode(other), **settings) for other in others]
        for sign in (-1, 1):
            moved = tf.nest.map_structure(lambda t, sign=sign: t * (1 + sign * EPS) if t.dtype.is_floating else t, x)
            other = fresh(whole)
            for weight in other.trainable_variables:
                weight.assign(weight * (1 + sign * EPS))
            spread.append(train(other, moved, y, **_of_mode(plain_mode), **settings))
        assert_equal(plain, found, exact=False, spread=spread, **judge)


def _of_mode(mode):
    return {"graph": mode != "eager", "jit_compile": mode == "xla" or None}


def _inputs(model, batch):
    rng, found = np.random.default_rng(3), []
    for tensor in model.inputs:
        shape = (batch, *tensor.shape[1:])
        if "int" in str(tensor.dtype):
            tokens = rng.integers(0, 7, shape)
            tokens[:, 0] = 1
            found.append(tf.constant(tokens, "int32"))
        else:
            found.append(tf.constant(rng.standard_normal(shape), "float32"))
    return found if len(found) > 1 else found[0]


def _target(loss, batch, i):
    rng = np.random.default_rng(i)
    if loss == "mse":
        return tf.constant(rng.standard_normal((batch, 3)), "float32")
    if loss == "sigmoid":
        return tf.constant(rng.integers(0, 2, (batch, 3)), "float32")
    return tf.constant(rng.integers(0, 3, batch), "int32")


def _loss(losses):
    functions = {
        "mse": keras.losses.mean_squared_error,
        "logits": lambda y, o: keras.losses.sparse_categorical_crossentropy(y, o, from_logits=True),
        "softmax": keras.losses.sparse_categorical_crossentropy,
        "sigmoid": keras.losses.binary_crossentropy,
    }

    def total(outputs, targets):
        parts = [functions[loss](y, o) for loss, o, y in zip(losses, outputs, targets, strict=True)]
        return tf.add_n([tf.cast(tf.reduce_mean(part), "float32") for part in parts])

    return total


def _switched(model, way, batch, mode, rng, x):
    """Let a model run by a plan, and return what to call."""
    if way == "recompute":
        return tfgc.recompute(model)
    if way == "whole":
        plan = tfgc.plan(model, example=(x,)) if rng.random() < 0.5 else None
        return tfgc.enable(model, plan, verbose=0)
    if way == "layers":
        layers = [layer for layer in model.layers if not isinstance(layer, L.InputLayer)]
        return tfgc.enable(model, layers=rng.sample(layers, rng.randint(1, len(layers))), verbose=0)
    if way == "first call":
        return tfgc.enable(model, strategy=rng.choice(["uniform", "optimal", "sqrt"]), verbose=0)
    if way == "random cuts":
        plan = tfgc.plan(model, batch, strategy="keep_all")
        nodes = [name for segment in plan.segments for name in segment.nodes]
        likely = {i for i, name in enumerate(nodes, 1) if name.rpartition("/")[2].lower() in PROBABILITIES}
        segments = _segments(nodes, _cut(rng, 0, len(nodes), likely))
        return tfgc.enable(model, dataclasses.replace(plan, segments=segments, strategy="random"), verbose=0)
    return tfgc.enable(model, _planned(model, way, batch, rng), verbose=0)


def _planned(model, strategy, batch, rng):
    options = {}
    if strategy in ("uniform", "sqrt"):
        options = {"segments": rng.randint(1, 3)}
    elif strategy in ("budget", "ilp"):
        options = {"budget": f"{rng.randint(60, 100)}%"}
    try:
        return tfgc.plan(model, batch, strategy=strategy, **options)
    except tfgc.InfeasibleBudgetError as error:
        return tfgc.plan(model, batch, strategy=strategy, budget=error.least)
    except tfgc.OptionError:  # so many blocks it has not
        return tfgc.plan(model, batch, strategy=strategy, segments=1)


def _segments(nodes, pieces):
    """Pieces as segments of these operations."""
    found = []
    for a, b, how in pieces:
        inner = tfgc.Plan(_segments(nodes, how), "inner", ()) if isinstance(how, list) else None
        found.append(tfgc.Segment(tuple(nodes[a:b]), "recompute" if inner else how, inner=inner))
    return tuple(found)


def _cut(rng, start, end, likely, depth=0):
    """Pieces of a plan: kept, recomputed, or cut again; often where it is `likely` to matter."""
    cuts = set(rng.sample(range(start + 1, end), rng.randint(0, min(4, end - start - 1))))
    cuts = sorted(cuts | {i for i in likely if start < i < end and rng.random() < 0.6})
    pieces = []
    for a, b in zip([start, *cuts], [*cuts, end]):
        nest = depth < 2 and b - a > 1 and rng.random() < 0.3
        inner = _cut(rng, a, b, likely, depth + 1) if nest else None
        how = rng.choice(["recompute", "recompute", "keep"])
        pieces.append((a, b, inner if inner and len(inner) > 1 else how))
    return pieces


def _is_summed_anew(model):
    """Whether a tensor, or a layer with its weights, has uses in several nodes, each of which may be several."""
    program = keras_graph.Program(model)
    read = [ref for node in program.graph.nodes for ref in node.inputs]
    called = [*map(id, program.operations.values())]
    return len(set(read)) < len(read) or len(set(called)) < len(called)
