"""A value of any structure with its tensors taken out, and put together again from others."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import tensor_attributes


class _Leaf(NamedTuple):
    """What stands for one value of a structure."""

    kind: str  # "tensor", "composite" (sparse, ragged) or "static"
    # The value, where it holds no tensor; the type of a composite one; of a tensor the activation that makes it of its
    # logits, or None.
    static: Any
    slots: tuple[int, ...] = ()  # positions of its tensors
    attached: tuple[tuple[str, int], ...] = ()  # names and positions of the tensors that Keras attached to it


class Packing:
    """The structure of a value with its tensors taken out.

    What Keras reads off a tensor (its mask, the logits behind it) travels as separate tensors. If the value was `made`
    by a function whose results are replaced, a tensor that a Softmax or Sigmoid made gives its logits alone, and
    `unpack` applies the operation to what stands for these.
    """

    def __init__(self, value: Any, made: bool = False) -> None:
        self.tensors: list[tf.Tensor] = []  # until they are taken, each once
        self.specs: list[tf.TensorSpec] = []  # from then on: their static shapes and dtypes
        self.unsupported: str | None = None  # why a function with this value cannot be recomputed
        self._made, self._places = made, dict[int, int]()
        self._leaves = [self._take(leaf) for leaf in tf.nest.flatten(value)]
        self._structure = tf.nest.map_structure(lambda _: None, value)

    def _take(self, value: Any) -> _Leaf:
        """Take the tensors out of a value that is no structure."""
        if isinstance(value, (keras.Variable, tf.Variable)):
            return _Leaf("static", value)
        if tensor_attributes.is_composite(value):
            parts = tf.nest.flatten(value, expand_composites=True)
            return _Leaf("composite", tf.type_spec_from_value(value), tuple(map(self._slot, parts)))
        if isinstance(value, keras.KerasTensor):
            raise UnsupportedModelError(
                f"A recomputed function was called on the symbolic {value!r}. It takes tensors; "
                "to recompute parts of a functional model use tfgc.enable(model)."
            )
        if not tf.is_tensor(value):
            if isinstance(value, tf.TensorArray):
                self.unsupported = "it takes or returns a tf.TensorArray. Pass its stack() instead"
            elif self._made and tensor_attributes.holds_tensors(value):
                what = f"a {type(value).__name__!r}, an object that holds tensors"
                self.unsupported = f"it returns {what}. Return a tuple or dict instead"
            return _Leaf("static", value)
        activation, logits = tensor_attributes.activation(value)
        slots = [self._slot(logits)] if activation is not None else []
        slots += [self._slot(value)] if activation is None or not self._made else []
        attached = tuple((name, self._slot(tensor)) for name, tensor in tensor_attributes.attributes(value))
        return _Leaf("tensor", activation, tuple(slots), attached)

    def _slot(self, tensor: Any) -> int:
        """The position of a tensor. One that comes twice has one, so that its gradients are added up in one place."""
        if id(tensor) not in self._places:
            self._places[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._places[id(tensor)]

    def take_tensors(self) -> list[tf.Tensor]:
        """Hand over the tensors and keep only their dtypes and static shapes."""
        tensors, self.tensors = self.tensors, []
        self.specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
        return tensors

    def unpack(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Put `tensors` (in the order of `take_tensors`) back into the structure."""
        leaves = []
        for leaf in self._leaves:
            if leaf.kind == "static":
                leaves.append(leaf.static)
                continue
            if leaf.kind == "composite":
                parts = [tensors[i] for i in leaf.slots]
                leaves.append(tf.nest.pack_sequence_as(leaf.static, parts, expand_composites=True))
                continue
            tensor = tensors[leaf.slots[0]]
            if leaf.static is not None and len(leaf.slots) > 1:
                tensor = tensor_attributes.made_again(leaf.static, tensor, tensors[leaf.slots[1]])
            elif leaf.static is not None:
                tensor = tensor_attributes.ACTIVATIONS[leaf.static](tensor)
            for name, slot in leaf.attached:
                setattr(tensor, name, tensors[slot])
            leaves.append(tensor)
        return tf.nest.pack_sequence_as(self._structure, leaves)

    @property
    def shapes(self) -> tuple[tuple[int | None, ...] | None, ...]:
        """The static shapes of the tensors, as plain tuples."""
        return tuple(None if spec.shape.rank is None else tuple(spec.shape) for spec in self.specs)

    @property
    def layouts(self) -> frozenset[int]:
        """Slots of integers by which a sparse or ragged tensor says how its values lie; they may size other tensors."""
        composites = (leaf for leaf in self._leaves if leaf.kind == "composite")
        return frozenset(slot for leaf in composites for slot in leaf.slots if self.specs[slot].dtype.is_integer)

    @property
    def is_hashable(self) -> bool:
        """Whether `key` holds the values of everything but the tensors."""
        return all(leaf.kind != "static" or isinstance(leaf.static, _FLAGS) for leaf in self._leaves)

    @property
    def key(self) -> Hashable:
        """Hashable, and equal for values of one structure."""
        leaves = tuple((leaf.kind, _hashable(leaf.static), leaf.slots, leaf.attached) for leaf in self._leaves)
        return repr(self._structure), leaves, tuple((spec.dtype, spec.shape.rank) for spec in self.specs)


_FLAGS = bool | str | int | float | np.generic | tf.TypeSpec | None


def _hashable(leaf: Any) -> Hashable:
    """Flags, numbers and names by value, since they choose what is run; the rest by type, and not kept alive."""
    return (type(leaf), leaf) if isinstance(leaf, _FLAGS) else type(leaf)
