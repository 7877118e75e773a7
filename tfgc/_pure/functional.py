"""Turn a call that reads and writes state into a pure function of tensors.

Data: a call is a `Packing` (structure and static leaves) and a flat list of
tensors. `run` executes the function once with every Keras variable served from
a table, and hands back all that it did: output tensors, the losses it added and
the new values of the variables it wrote. Nothing outside has changed by then.

Invariant: two runs with the same tensors and the same table do the same thing,
so a replay cannot draw other random numbers or move a statistic twice. Whether
a function keeps to that (no raw `tf.random`, no write to a plain
`tf.Variable`) is what `side_effects` finds out, by tracing it once.
"""

import contextlib
import contextvars
import dataclasses

import keras
import tensorflow as tf

from tfgc._framework import keras_models, private_api
from tfgc._pure import inner_functions, replay_checksums
from tfgc._pure.tensor_packing import Packing, spec_of

_noted = contextvars.ContextVar("tfgc_noted", default=None)


class StaleEffectsError(Exception):
    """The function read a variable that `discover` had not seen."""


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
        storage = private_api.storage(variable)
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
        self._makers[id(loss)] = keras_models.maker_of_loss()
        super().add_loss(loss)

    def __enter__(self):
        self._outer_notes = _noted.set(self.notes)
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        _noted.reset(self._outer_notes)
        for loss, layer in zip(self.losses, self.loss_layers):
            keras_models.forget_loss(layer, loss)

    def apart(self, body, args, kwargs, xla):
        """Call a function that needs a graph of its own; writes and losses leave it as its results."""
        packing, runs = Packing((args, kwargs)), []
        tensors = packing.take_tensors()
        # Not of a branch: the other one may read the same variable.
        here = contextlib.nullcontext if tf.executing_eagerly() else tf.compat.v1.get_default_graph().as_default

        def read(variable):
            with here():
                return self.get_current_value(variable)

        def pure(*tensors):
            args, kwargs = packing.unpack(tensors)
            with Scope(None, read) as scope, inner_functions.inlined(scope.apart):
                result = body(*args, **kwargs)
            runs.append(scope.outcome(result, []))
            return runs[-1].tensors

        made = inner_functions.call_apart(pure, tensors, xla)
        return runs[-1].finish(made)

    def outcome(self, result, draws):
        """The `Run` of what was done in this scope: a function's result, and what it drew."""
        packed = Packing(result, made=True)
        outputs = packed.take_tensors()
        sums = [checksum for _, checksum in self.notes or ()]
        tensors = [*outputs, *self.losses, *sums, *(value for _, value in self.written.values())]
        specs = [spec_of(t) for t in tensors]
        labels = [label for label, _ in self.notes or ()]
        return Run(tensors, specs, packed, self.loss_layers, labels, [v for v, _ in self.written.values()], draws)

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
    the new values of the written variables. `labels` hold the layer behind each checksum, and the spec of what it made;
    `draws` are random numbers that only their tensors tell.
    """

    tensors: list
    specs: list
    packing: Packing
    loss_layers: list
    labels: list
    written: list
    draws: list

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

    def without_tensors(self):
        """What is the same in every run of this signature."""
        return dataclasses.replace(self, tensors=None, draws=None)

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


def record_checksum(name: str, tensors: list) -> None:
    """Record the checksums of what a layer made, if what runs now is to be compared with a second run."""
    if _noted.get() is not None:
        _noted.get().extend(((name, spec_of(t)), replay_checksums.checksum(t)) for t in tensors if tf.is_tensor(t))


def run(fn, packing, tensors, variables, values, draws=contextlib.nullcontext):
    """Run `fn` once on `tensors`, with `variables` holding `values`. Pure, but for what it draws.

    `draws(found)` is a context in which the drawn tensors are added to the list `found`, or others stand in for them.
    """
    args, kwargs = packing.unpack(tensors)
    table, found = {id(v): value for v, value in zip(variables, values)}, []
    with Scope(table) as scope, inner_functions.inlined(scope.apart), draws(found):
        result = fn(*args, **kwargs)
    return scope.outcome(result, found)
