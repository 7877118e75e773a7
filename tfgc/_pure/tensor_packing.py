"""A value of any structure with its tensors taken out, and put together again from others."""

import copy

import keras
import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import tensor_attributes


def spec_of(tensor):
    """The static shape and dtype of a tensor."""
    return tf.TensorSpec(tensor.shape, tensor.dtype)


class Packing:
    """The structure of a value with its tensors taken out.

    What Keras reads off a tensor (its mask, the logits behind it) travels as tensors of its own.

    Args:
        value: Any nesting of tensors and other values.
        made: Whether the value was made by a function whose results are replaced. A tensor that a Softmax or
            Sigmoid made then gives its logits alone, and `unpack` applies the operation to what stands for these.
    """

    def __init__(self, value, made=False):
        self.tensors = []
        self.unsupported = None
        self._made = made
        self._leaves = [self._take(leaf) for leaf in tf.nest.flatten(value)]
        self._structure = tf.nest.map_structure(lambda _: None, value)
        flat = type(value) is list and len(value) == len(self._leaves)
        plain = (kind == "tensor" and static is None and not hung for kind, static, _, hung in self._leaves)
        self._flat = flat and all(plain)

    def _take(self, leaf):
        """Replace a leaf by (kind, static part, slots of its tensors, attributes and their slots)."""
        if isinstance(leaf, (keras.Variable, tf.Variable)):
            return ("static", leaf, (), ())
        if tensor_attributes.is_composite(leaf):
            parts = tf.nest.flatten(leaf, expand_composites=True)
            return ("composite", tf.type_spec_from_value(leaf), tuple(map(self._slot, parts)), ())
        if isinstance(leaf, keras.KerasTensor):
            raise UnsupportedModelError(
                f"A recomputed function was called on the symbolic {leaf!r}. It takes tensors; "
                "to recompute parts of a functional model use tfgc.enable(model)."
            )
        if not tf.is_tensor(leaf):
            if isinstance(leaf, tf.TensorArray):
                self.unsupported = "it takes or returns a tf.TensorArray. Pass its stack() instead"
            return ("static", leaf, (), ())
        (kind, logits), slots, known = tensor_attributes.activation(leaf), [], {}
        if kind is not None:
            slots.append(known.setdefault(id(logits), self._slot(logits)))
        if kind is None or not self._made:
            slots.append(known.setdefault(id(leaf), self._slot(leaf)))
        hung = []
        for name, value in tensor_attributes.attributes(leaf):
            if id(value) not in known:
                known[id(value)] = self._slot(value)
            hung.append((name, known[id(value)]))
        return ("tensor", kind, tuple(slots), tuple(hung))

    def _slot(self, tensor):
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def take_tensors(self) -> list[tf.Tensor]:
        """Hand over the tensors and keep only their dtypes and static shapes."""
        tensors, self.tensors = self.tensors, None
        self.specs = [spec_of(t) for t in tensors]
        return tensors

    def unpack(self, tensors):
        """Put `tensors` (in the order of `take_tensors`) back into the structure."""
        if self._flat:
            return list(tensors)
        leaves = []
        for kind, static, slots, hung in self._leaves:
            if kind == "static":
                leaves.append(static)
                continue
            if kind == "composite":
                parts = [tensors[i] for i in slots]
                leaves.append(tf.nest.pack_sequence_as(static, parts, expand_composites=True))
                continue
            leaf = tensors[slots[0]]
            if static is not None:
                leaf = tensor_attributes.ACTIVATIONS[static](leaf)
            for name, slot in hung:
                setattr(leaf, name, tensors[slot])
            leaves.append(leaf)
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def unread(self, given, returned):
        """Slots of logits that hang on tensors, or stand behind them, and that a trace never looked at.

        `given` are the symbolic tensors that the trace got, `returned` those that it made. A mask counts as read: that
        there is one may matter.
        """
        returned = {id(tensor) for tensor in returned}
        found = set()
        for kind, static, slots, hung in self._leaves:
            if kind != "tensor":
                continue
            # Of the logits behind a tensor `unpack` itself makes one operation.
            least = {slots[0]: 1} if static is not None else {}
            for slot in {*least, *(slot for name, slot in hung if name == tensor_attributes.LOGITS)} - {slots[-1]}:
                consumers = len(given[slot].consumers())
                if consumers <= least.get(slot, 0) and id(given[slot]) not in returned:
                    found.add(slot)
        return frozenset(found)

    def without(self, slots):
        """The same value without what hangs on its tensors in these slots; other slots move up."""
        if not slots:
            return self
        kept = [slot for slot in range(len(self.specs)) if slot not in slots]
        moved = {slot: i for i, slot in enumerate(kept)}
        other = copy.copy(self)
        other.specs = [self.specs[slot] for slot in kept]
        other._leaves = []
        for kind, static, own, hung in self._leaves:
            behind = kind == "tensor" and own[0] not in moved
            own = tuple(moved[slot] for slot in own if slot in moved)
            hung = tuple((name, moved[slot]) for name, slot in hung if slot in moved)
            other._leaves.append((kind, None if behind else static, own, hung))
        return other

    @property
    def shapes(self):
        """The static shapes of the tensors, as plain tuples."""
        return tuple(None if spec.shape.rank is None else tuple(spec.shape) for spec in self.specs)

    @property
    def is_hashable(self) -> bool:
        """Whether `key` holds the values of everything but the tensors."""
        return all(kind != "static" or isinstance(static, _FLAGS) for kind, static, _, _ in self._leaves)

    @property
    def key(self):
        """Hashable; equal for calls that `discover` need look at only once."""
        leaves = tuple((kind, _hashable(static), slots, hung) for kind, static, slots, hung in self._leaves)
        dtypes = tuple((spec.dtype, spec.shape.rank) for spec in self.specs)
        return (repr(self._structure), leaves, dtypes)


_FLAGS = bool | str | int | float | tf.TypeSpec | None


def _hashable(leaf):
    """Flags, numbers and names by value, since they choose what is run; the rest by type, and not kept alive."""
    return (type(leaf), leaf) if isinstance(leaf, _FLAGS) else type(leaf)
