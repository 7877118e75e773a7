"""Constants by which TensorFlow must not multiply what is there before the gradients that it is multiplied by.

Grappler moves constants down: of (g * s) * c it makes g * (s * c) (`ConstantFolding::ConstantPushDown`), and s * c,
which waits for no gradient, is then made as soon as s is. The gradient of an attention is scaled so: a replay of
several held the scaled scores of all. Where Grappler knows that g and s are of one shape it makes s * (g * c) of it; in
replays of an open batch it often does not.
"""

from collections.abc import Iterable

import tensorflow as tf

from tfgc._framework.versions import attribute

# What has fewer elements may be made early.
_LARGE = 1024


def hold_back(operations: Iterable[tf.Operation], upstream: Iterable[tf.Tensor]) -> None:
    """Put constants that Grappler would move so behind an operation that it does not look through.

    Of `operations`, in the order in which they were traced, those that depend on `upstream` are changed.
    """
    late = {tensor.op for tensor in upstream}
    behind: dict[tf.Operation, tf.Tensor] = {}
    for op in operations:
        if late.isdisjoint(tensor.op for tensor in op.inputs):
            continue
        late.add(op)
        if op.type == "Mul" and not op.outputs[0].shape.is_fully_defined():
            for i, (constant, product) in enumerate(zip(op.inputs, [*op.inputs][::-1])):
                if constant.op.type == "Const" and product.op.type == "Mul" and _has_early_part(product.op, late):
                    if constant.op not in behind:
                        placed = tf.raw_ops.PlaceholderWithDefault(input=constant, shape=constant.shape)
                        behind[constant.op] = placed
                    attribute(op, "_update_input")(i, behind[constant.op])


def _has_early_part(product: tf.Operation, late: set[tf.Operation]) -> bool:
    """Whether a large factor is there before the gradients."""
    early = [factor for factor in product.inputs if factor.op not in late and factor.op.type != "Const"]
    return any((factor.shape.num_elements() or _LARGE) >= _LARGE for factor in early)
