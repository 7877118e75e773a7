"""Samples of noise that show whether a function mixes them, with what the function treats apart among them.

Random numbers do not meet a label of -1 that a loss ignores, or a threshold. So what operations compare with constants,
and values on both sides of these, are put among the noise, as fuzzers (AFL's dictionaries) put a program's constants
among its inputs. Every sample has another share of them, so that samples, and both halves of a batch, differ.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfgc._framework import operation_order
from tfgc._pure.obstacles import functions_called
from tfgc._step import loop_trips

SAMPLES = 6  # An even number.
_OPEN = 16  # Stands for a size that is not known.
_SCALES = (1.0, 30.0)  # A function may look at other samples only beyond a threshold.
_COMPARISONS = frozenset(["Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"])
_ASKS_FOR_NAN = frozenset(["IsNan", "IsFinite", "IsInf"])
_ASKS_FOR_ZERO = frozenset(["Where", "Sign"])
_SAME = frozenset(["Cast", "Identity"])
_FEW, _MOST_VALUES = 16, 24
# Of each sample's entries the share that has a special value: some of all, and of one sample alone.
_SPREAD, _ALONE = (1.0, 0.6, 0.2, 0.8, 0.4, 0.0), (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Kind(NamedTuple):
    """How noise is drawn: the scale of its numbers, a special value among them, and the share of it by sample."""

    scale: float = 1.0
    value: float | None = None
    shares: tuple[float, ...] = _SPREAD


def kinds(operations: Sequence[tf.Operation]) -> Iterator[Kind]:
    """The kinds of noise for a function of these operations; those with special values last."""
    yield from map(Kind, _SCALES)
    for value in special_values(operations):
        yield Kind(value=value)
        yield Kind(value=value, shares=_ALONE)


def special_values(operations: Sequence[tf.Operation]) -> list[float]:
    """What operations of a graph, and of its functions, treat apart: constants that they compare with, and values on
    both sides; NaN and zero where they ask for them.
    """
    nodes = [op.node_def for op in operations]
    found: set[float] = set()
    for tensor in (tensor for op in operations if op.type in _COMPARISONS for tensor in op.inputs):
        found |= _numbers(tf.get_static_value(tensor))
    called = {name for node in nodes for name in _functions(node)}
    if called:
        library = {f.signature.name: f.node_def for f in operations[0].graph.as_graph_def().library.function}
        calls = {name: [f for n in inside for f in _functions(n) if f in library] for name, inside in library.items()}
        for name in operation_order.reached(called & library.keys(), calls.__getitem__):
            nodes += library[name]
            found |= _compared_in(library[name])
    to_bool = tf.bool.as_datatype_enum
    if any(n.op in _ASKS_FOR_ZERO or (n.op == "Cast" and n.attr["DstT"].type == to_bool) for n in nodes):
        found.add(0.0)
    around = {value + step for value in found for step in (-1.0, 0.0, 1.0)}
    nan = [math.nan] if any(node.op in _ASKS_FOR_NAN for node in nodes) else []
    return nan + sorted(around, key=lambda value: (abs(value), value))[:_MOST_VALUES]


def placeholder(like: Any) -> tf.Tensor:
    """A symbolic tensor like `like`, a tensor or `tf.TensorSpec` with samples in front, of which it has `SAMPLES`."""
    return tf.compat.v1.placeholder(like.dtype, _shape(like))


def draw(random: np.random.Generator, like: Any, kind: Kind) -> tf.Tensor:
    """Noise of the shape and type of `placeholder(like)`."""
    shape = _shape(like)
    chosen = _chosen(random, shape, kind.shares)
    if like.dtype.is_bool:
        return tf.constant(chosen)
    value = kind.value
    if like.dtype.is_integer:
        value = 0 if value is None or math.isnan(value) else round(value)
        numbers: Any = np.full(shape, 0 if value == 1 else 1)
    else:
        numbers = kind.scale * _normal(random, shape)
    if value is not None:
        numbers = np.where(chosen, value, numbers)
    return tf.cast(numbers, like.dtype)


def words(random: np.random.Generator, like: Any) -> tf.Tensor:
    """Strings of one to three short words, in place of noise."""
    counts = random.integers(1, 4, _shape(like))
    texts = [" ".join(random.choice(list("abcdefgh"), count)) for count in counts.ravel()]
    return tf.reshape(tf.constant(texts), counts.shape)


def weight(random: np.random.Generator, like: tf.Tensor) -> tf.Tensor:
    """Noise for a variable."""
    shape: Any = tuple(like.shape)
    whole = like.dtype.is_bool or like.dtype.is_integer
    return tf.cast(random.integers(0, 2, shape) if whole else _normal(random, shape), like.dtype)


def _shape(like: Any) -> tuple[int, ...]:
    return SAMPLES, *(_OPEN if size is None else size for size in like.shape[1:])


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.normal(0.0, 0.5, shape)


def _chosen(random: np.random.Generator, shape: tuple[int, ...], shares: Sequence[float]) -> np.ndarray:
    """Which entries have the special value: as many of each sample as its share says, at random places."""
    order = random.random((SAMPLES, int(np.prod(shape[1:])))).argsort(axis=1)
    counts = np.rint(np.multiply(shares, order.shape[1]))
    return (order < counts[:, None]).reshape(shape)


def _functions(node: Any) -> list[str]:
    """The functions that a node runs; of a loop not the condition, which compares its counter."""
    condition = node.attr["cond"].func.name if node.op in loop_trips.LOOPS else None
    return [name for name in functions_called(node) if name != condition]


def _numbers(constant: Any) -> set[float]:
    """The numbers of a constant, if it is a small array of finite ones."""
    if constant is None or constant.dtype.kind not in "iufV" or constant.size > _FEW:  # bfloat16 is a V
        return set()
    return {x for x in constant.astype("float64").ravel().tolist() if math.isfinite(x) and abs(x) < 2**31 - 1}


def _compared_in(nodes: Sequence[Any]) -> set[float]:
    """The constants that the nodes of a function's definition compare with."""
    by_name = {node.name: node for node in nodes}

    def source(name: str) -> Any:
        node = by_name.get(name.partition(":")[0])
        while node is not None and node.op in _SAME:
            node = by_name.get(node.input[0].partition(":")[0])
        return node

    read = (source(name) for node in nodes if node.op in _COMPARISONS for name in node.input)
    constants = (tf.make_ndarray(node.attr["value"].tensor) for node in read if node is not None and node.op == "Const")
    return set().union(*map(_numbers, constants))
