"""Products that TensorFlow's optimizer moves from the backward pass into the forward pass, which then stores them.

The gradient of `softmax(c * x)`, as in attention without dropout, ends in `c * (p * late)`. Grappler moves the number
inward (`ConstantPushDown` of its constant folding, in TensorFlow 2.19 to 2.21): to `p * (c * late)`, or to `(c * p) *
late`, where `c * p` is made as soon as `p` is, an attention map more for each layer. It sorts factors by the names of
operations, and so it is the second where these come before `gradient_tape` in the alphabet: a model named `functional`
stores more than one named `transformer`.
"""

from typing import Any

import tensorflow as tf

from tfgc._costs.call_operations import Call, Operations
from tfgc._costs.tensor_buffers import Buffers


def are_made(scope: str) -> bool:
    """Whether Grappler makes such products early where the names of operations begin with `scope`.

    >>> are_made("functional"), are_made("transformer")
    (True, False)
    """
    return scope < "gradient_tape"


def early_products(call: Call, operations: Operations, buffers: Buffers) -> tuple[int, ...]:
    """Bytes of each product of a number and of what other operations of the backward pass read, too."""
    late = operations.after_upstream
    readers: dict[Any, set[tf.Operation]] = {}
    for op in operations.late:
        for t in op.inputs:
            readers.setdefault(buffers.root(t).ref(), set()).add(op)
    found: dict[Any, int] = {}
    for op in operations.late if are_made(call.scope) else ():
        product = _scaled(op)
        if product is None or product.op.type != "Mul" or product.op not in late or len(product.consumers()) > 1:
            continue
        early = [buffers.root(t) for t in product.op.inputs if t.op not in late and t.op not in operations.free]
        for root in early:
            if buffers.bytes(root) == buffers.bytes(product) and readers[root.ref()] != {product.op}:
                found[root.ref()] = buffers.bytes(root)
    return tuple(found.values())


def _scaled(op: tf.Operation) -> tf.Tensor | None:
    """What an operation multiplies by a number, or None."""
    numbers = {"Mul": (0, 1), "RealDiv": (1,)}.get(op.type, ())
    return next((op.inputs[1 - i] for i in numbers if op.inputs[i].shape.rank == 0 and _is_known(op.inputs[i])), None)


def _is_known(number: tf.Tensor) -> bool:
    return tf.get_static_value(number) is not None
