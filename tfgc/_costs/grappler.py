"""What TensorFlow's optimizer, Grappler, changes in a step: constants that it keeps, products that it makes early.

The gradient of `softmax(c * x)`, as in attention without dropout, ends in `c * (p * late)`. Grappler moves the number
inward (`ConstantPushDown` of its constant folding, in TensorFlow 2.19 to 2.21): to `p * (c * late)`, or to `(c * p) *
late`, where `c * p` is made as soon as `p` is, an attention map more for each layer. It sorts factors by the names of
operations, and so it is the second where these come before `gradient_tape` in the alphabet: a model named `functional`
stores more than one named `transformer`.
"""

from collections.abc import Iterable, Set
from typing import Any

import tensorflow as tf

from tfgc._costs.tensor_buffers import Buffers
from tfgc._step.flop_counts import SHAPE_ONLY

# Bytes of a buffer from which on it counts.
SMALL = 64

# TensorFlow computes larger constants in each step (`ConstantFoldingOptions`).
_MOST_FOLDED = 10 * 2**20


def folded(operations: Iterable[tf.Operation], buffers: Buffers) -> set[tf.Operation]:
    """What TensorFlow computes once and keeps, as it depends on constants alone and is not too large."""
    found: set[tf.Operation] = set()
    for op in operations:
        stateful = op.op_def.is_stateful or op.type == "Placeholder"
        small = all(buffers.bytes(t) <= _MOST_FOLDED for t in op.outputs)
        if small and not stateful and all(t.op in found for t in op.inputs):
            found.add(op)
    return found


def sizes(runs: Iterable[tf.Operation], constants: Set[tf.Operation], buffers: Buffers) -> dict[Any, int]:
    """Bytes of the constants that operations read, by what they are made of, so that equal ones count once."""
    read = {t.ref(): t for op in runs if op.type not in SHAPE_ONLY for t in op.inputs if t.op in constants}
    large = [t for t in read.values() if buffers.bytes(t) >= SMALL]
    known: dict[tf.Operation, Any] = {}
    return {_formula(t, known): buffers.bytes(t) for t in large}


def _formula(tensor: tf.Tensor, known: dict[tf.Operation, Any]) -> Any:
    """What a constant is made of, the same for equal ones. Numbers from one tensor, as gradients of losses, are."""
    op = tensor.op
    if op not in known:
        # Those that begin with an underscore say where it runs, or what asked for it.
        given = [(name, value) for name, value in op.node_def.attr.items() if not name.startswith("_")]
        attributes = sorted((name, value.SerializeToString()) for name, value in given)
        known[op] = hash((op.type, *attributes, *(_formula(t, known) for t in op.inputs)))
    return known[op], tensor.value_index if tensor.shape.rank else None


def are_made(scope: str) -> bool:
    """Whether Grappler makes such products early where the names of operations begin with `scope`.

    >>> are_made("functional"), are_made("transformer")
    (True, False)
    """
    return scope < "gradient_tape"


def moved(
    operations: Iterable[tf.Operation], late: Set[tf.Operation], free: Set[tf.Operation], buffers: Buffers
) -> list[tuple[tf.Operation, tf.Tensor]]:
    """The operations of the backward pass that may read such a product, each with what is multiplied by a number.

    `late` is all that depends on a gradient, `free` are constants and variables.
    """
    operations = list(operations)
    readers: dict[Any, set[tf.Operation]] = {}
    for op in operations:
        for t in op.inputs:
            readers.setdefault(buffers.root(t).ref(), set()).add(op)
    found: dict[Any, tuple[tf.Operation, tf.Tensor]] = {}
    for op in operations:
        product = _scaled(op)
        if product is None or product.op.type != "Mul" or product.op not in late or len(product.consumers()) > 1:
            continue
        early = [buffers.root(t) for t in product.op.inputs if t.op not in late and t.op not in free]
        for root in early:
            # Where nothing else reads it, its product takes its place.
            if buffers.bytes(root) == buffers.bytes(product) and readers[root.ref()] != {product.op}:
                found[root.ref()] = op, root
    return list(found.values())


def _scaled(op: tf.Operation) -> tf.Tensor | None:
    """What an operation multiplies by a number, or None."""
    numbers = [i for i in {"Mul": (0, 1), "RealDiv": (1,)}.get(op.type, ()) if op.inputs[i].shape.rank == 0]
    return next((op.inputs[1 - i] for i in numbers if tf.get_static_value(op.inputs[i]) is not None), None)
