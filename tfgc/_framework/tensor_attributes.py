"""What Keras and TensorFlow read from a tensor besides its value.

A tensor carries its mask and the logits behind its probabilities as attributes (`_keras_mask`, `_keras_logits`). In a
graph Keras's crossentropies also look at the operation that made a tensor: they use the input of a Softmax or Sigmoid
as the logits. A copy of a tensor, or what a function returns in its place, has neither.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfgc._framework.internals import record

ACTIVATIONS = {
    "Softmax": lambda logits: tf.raw_ops.Softmax(logits=logits),
    "Sigmoid": lambda logits: tf.raw_ops.Sigmoid(x=logits),
}

MASK = "_keras_mask"
LOGITS = "_keras_logits"


def mask_of(tensor: Any) -> Any:
    """The mask that Keras attached to a tensor, or None."""
    return getattr(tensor, MASK, None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attach a mask to a tensor, as Keras does."""
    setattr(tensor, MASK, mask)


def masked(structure: Any) -> list[int]:
    """The positions of the values of a structure that have a mask."""
    return [i for i, value in enumerate(tf.nest.flatten(structure)) if mask_of(value) is not None]


def take_masks_off(structure: Any, positions: Iterable[int]) -> None:
    """Take the masks off the values of a structure in these positions."""
    for i in positions:
        set_mask(tf.nest.flatten(structure)[i], None)


def is_composite(value: Any) -> bool:
    """Whether a value is made of several tensors, as sparse and ragged ones are."""
    parts = [value] if isinstance(value, tf.TypeSpec) else tf.nest.flatten(value, expand_composites=True)
    return all(part is not value for part in parts)


def attributes(tensor: Any) -> list[tuple[str, tf.Tensor]]:
    """The tensors attached to a tensor, as pairs of a name and a tensor."""
    return [(name, x) for name, x in sorted(getattr(tensor, "__dict__", {}).items()) if isinstance(x, tf.Tensor)]


def activation(tensor: Any) -> tuple[str | None, Any]:
    """The type of the operation that made `tensor` and its input, where Keras looks for logits there; else Nones."""
    if not tf.is_symbolic_tensor(tensor) or tensor.op.type not in ACTIVATIONS:
        return None, None
    logits = tensor.op.inputs[0]
    return (tensor.op.type, logits) if getattr(tensor, LOGITS, logits) is logits else (None, None)


def made_again(kind: str, logits: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """A tensor behind which Keras finds logits by a type of operation, whose gradient is one of another such tensor."""
    with record.stop_recording():
        made = ACTIVATIONS[kind](logits)
    record.record_operation("Identity", [made], [tensor], lambda upstream: [upstream], lambda tangent: [tangent])
    return made


def holds_tensors(thing: Any) -> bool:
    """Whether an object that is no structure has tensors among its attributes."""
    values = getattr(thing, "__dict__", {}).values()
    return any(tf.is_tensor(x) for value in values for x in (value if isinstance(value, (list, tuple)) else [value]))
