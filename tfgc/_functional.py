"""Turn a call that reads and writes state into a pure function of tensors.

Data: a call is a `Packing` (structure and static leaves) and a flat list of
tensors. `run` executes the function once with every Keras variable served from
a table, and hands back all that it did: output tensors, the losses it added and
the new values of the variables it wrote. Nothing outside has changed by then.

Invariant: two runs with the same tensors and the same table do the same thing,
so a replay cannot draw other random numbers or move a statistic twice. Whether
a function keeps to that (no raw `tf.random`, no write to a plain
`tf.Variable`) is what `_effects` finds out, by tracing it once.
"""

import contextvars
import dataclasses
import sys

import keras
import tensorflow as tf

from tfgc import _checksum, _context
from tfgc._errors import UnsupportedModelError

_noted = contextvars.ContextVar("tfgc_noted", default=None)


class StaleEffectsError(Exception):
    """The function read a variable that `discover` had not seen."""


class Packing:
    """The structure of a value with its tensors taken out.

    Masks that Keras attaches to tensors travel as tensors of their own.
    """

    def __init__(self, value):
        self.tensors = []
        self.opaque = None
        self._leaves = [self._take(leaf) for leaf in tf.nest.flatten(value)]
        self._structure = tf.nest.map_structure(lambda _: None, value)
        flat = type(value) is list and len(value) == len(self._leaves)
        self._flat = flat and all(kind == "tensor" and mask is None for kind, _, _, mask in self._leaves)

    def _take(self, leaf):
        """Replace a leaf by (kind, static part, slots of its tensors, mask slot)."""
        if isinstance(leaf, (keras.Variable, tf.Variable)):
            return ("static", leaf, (), None)
        if isinstance(leaf, tf.__internal__.CompositeTensor):
            parts = tf.nest.flatten(leaf, expand_composites=True)
            return ("composite", tf.type_spec_from_value(leaf), self._slots(parts), None)
        if isinstance(leaf, keras.KerasTensor):
            raise UnsupportedModelError(
                f"A recomputed function was called on the symbolic {leaf!r}. It takes tensors; "
                "to recompute parts of a functional model use tfgc.enable(model)."
            )
        if not tf.is_tensor(leaf):
            if isinstance(leaf, tf.TensorArray):
                self.opaque = "it takes or returns a tf.TensorArray. Pass its stack() instead"
            return ("static", leaf, (), None)
        mask = getattr(leaf, "_keras_mask", None)
        slots = self._slots([leaf])
        return ("tensor", None, slots, None if mask is None else self._slots([mask]))

    def _slots(self, tensors):
        first = len(self.tensors)
        self.tensors.extend(tensors)
        return tuple(range(first, len(self.tensors)))

    def release(self):
        """Hand over the tensors and keep only their dtypes and static shapes."""
        tensors, self.tensors = self.tensors, None
        self.specs = [spec_of(t) for t in tensors]
        return tensors

    def unpack(self, tensors):
        """Put `tensors` (in the order of `release`) back into the structure."""
        if self._flat:
            return list(tensors)
        leaves = []
        for kind, static, slots, mask in self._leaves:
            if kind == "static":
                leaves.append(static)
                continue
            parts = [tensors[i] for i in slots]
            if kind == "composite":
                leaves.append(tf.nest.pack_sequence_as(static, parts, expand_composites=True))
                continue
            if mask is not None:
                parts[0]._keras_mask = tensors[mask[0]]
            leaves.append(parts[0])
        return tf.nest.pack_sequence_as(self._structure, leaves)

    @property
    def shapes(self):
        """The static shapes of the tensors, as plain tuples."""
        return tuple(None if spec.shape.rank is None else tuple(spec.shape) for spec in self.specs)

    @property
    def tells_all(self):
        """Whether `key` tells the values of everything but the tensors."""
        return all(kind != "static" or isinstance(static, _FLAGS) for kind, static, _, _ in self._leaves)

    @property
    def key(self):
        """Hashable; equal for calls that `discover` need look at only once."""
        leaves = tuple((kind, _hashable(static), slots, mask) for kind, static, slots, mask in self._leaves)
        dtypes = tuple((spec.dtype, spec.shape.rank) for spec in self.specs)
        return (repr(self._structure), leaves, dtypes)


_FLAGS = bool | str | int | float | tf.TypeSpec | None


def _hashable(leaf):
    """Flags, numbers and names by value, since they choose what is run; the rest by type, and not kept alive."""
    return (type(leaf), leaf) if isinstance(leaf, _FLAGS) else type(leaf)


class Scope(keras.StatelessScope):
    """Serves variables from a table, and notes all that is read and written.

    With `values` None it only takes notes, for a trace that is never run; then
    `stand_in` may give what stands for a variable, when it is first read.
    """

    def __init__(self, values, stand_in=None):
        super().__init__(collect_losses=True)
        self._stand_in = stand_in
        self.reads = {}
        self.written = {}
        self.notes = None if values is None else []
        self._strict = values is not None
        self._given = values or {}
        self._makers = {}
        self.state_mapping.update(self._given)

    def get_current_value(self, variable):
        value = self.state_mapping.get(id(variable))
        storage = _context.storage(variable)
        if value is None and self._strict and storage is not None:
            raise StaleEffectsError(variable.path)
        if value is None:
            self.reads[id(variable)] = variable
        if value is None and self._stand_in is not None and storage is not None:
            value = self._given[id(variable)] = self.state_mapping[id(variable)] = self._stand_in(variable)
        if value is None and storage is not None:
            # What a trace captures must be what goes past Keras; made anew for each branch that reads it.
            value = tf.zeros(storage.shape, storage.dtype)
        return value

    def add_update(self, update):
        variable, value = update
        self.written[id(variable)] = (variable, value)
        given = self._given.get(id(variable)) if variable.trainable else None
        self.state_mapping[id(variable)] = tf.stop_gradient(value) if given is None else _read_after_write(given, value)

    def add_loss(self, loss):
        # Keras passes the loss and not the layer; the caller is Layer.add_loss.
        self._makers[id(loss)] = sys._getframe(1).f_locals["self"]
        super().add_loss(loss)

    def __enter__(self):
        self._outer_notes = _noted.set(self.notes)
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        _noted.reset(self._outer_notes)
        # A layer remembers its losses by id, and ids are used again.
        for loss, layer in zip(self.losses, self.loss_layers):
            layer._loss_ids.discard(id(loss))

    @property
    def loss_layers(self):
        """The layer that made each of `losses`."""
        return [self._makers[id(loss)] for loss in self.losses]


@tf.custom_gradient
def _read_after_write(given, value):
    """The new value of a variable, with gradients going to the variable.

    A tape sums the gradients of all reads of a variable, whatever was written
    in between, and sees no path through the write itself.
    """
    return tf.identity(tf.stop_gradient(value)), lambda upstream: (upstream, None)


@dataclasses.dataclass
class Run:
    """All that one run of a function did.

    `tensors` are the outputs, then the losses, then the checksums that were noted, then
    the new values of the written variables. `labels` hold the layer behind each checksum, and the spec of what it made.
    """

    tensors: list
    specs: list
    packing: Packing
    loss_layers: list
    labels: list
    written: list

    @property
    def differentiable(self):
        """Positions in `tensors` through which gradients can flow."""
        end = len(self.specs) - len(self.written)
        return [i for i, s in enumerate(self.specs[:end]) if s.dtype.is_floating or s.dtype.is_complex]

    @property
    def checksums(self):
        """The tensors that `note` left."""
        end = len(self.specs) - len(self.written)
        return self.tensors[end - len(self.labels) : end]

    def with_tensors(self, tensors):
        """The same with other tensors; None for what is the same in every run of this signature."""
        return Run(tensors, self.specs, self.packing, self.loss_layers, self.labels, self.written)

    def finish(self, tensors):
        """Write the state, give the losses to their layers, return the value."""
        states_at = len(tensors) - len(self.written)
        notes_at = states_at - len(self.labels)
        losses_at = notes_at - len(self.loss_layers)
        for variable, value in zip(self.written, tensors[states_at:]):
            variable.assign(value)
        for layer, loss in zip(self.loss_layers, tensors[losses_at:notes_at]):
            layer.add_loss(loss)
        if _noted.get() is not None:
            _noted.get().extend(zip(self.labels, tensors[notes_at:states_at]))
        return self.packing.unpack(tensors[:losses_at])


def spec_of(tensor):
    """The static shape and dtype of a tensor."""
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def note(name, tensors):
    """Note the checksums of what a layer made, if what runs now is to be compared with a second run."""
    if _noted.get() is not None:
        _noted.get().extend(((name, spec_of(t)), _checksum.of(t)) for t in tensors if tf.is_tensor(t))


def run(fn, packing, tensors, variables, values):
    """Run `fn` once on `tensors`, with `variables` holding `values`. Pure."""
    args, kwargs = packing.unpack(tensors)
    table = {id(v): value for v, value in zip(variables, values)}
    with Scope(table) as scope, _context.functions_inlined():
        result = fn(*args, **kwargs)
    packed = Packing(result)
    outputs = packed.release()
    written = [variable for variable, _ in scope.written.values()]
    sums = [checksum for _, checksum in scope.notes]
    tensors = [*outputs, *scope.losses, *sums, *(value for _, value in scope.written.values())]
    specs = [spec_of(t) for t in tensors]
    return Run(tensors, specs, packed, scope.loss_layers, [label for label, _ in scope.notes], written)
