"""Turn a call that reads and writes state into a pure function of tensors.

`run` executes the function once with every Keras variable served from a table, and returns all that it did: output
tensors, the losses it added and the new values of the variables it wrote. Nothing outside has changed by then.

Invariant: two runs with the same tensors and the same table do the same thing, so a replay cannot draw other random
numbers or move a statistic twice. Whether a function keeps to that (raw `tf.random` numbers few enough to be stored, no
write to a plain `tf.Variable`) is what `side_effects` finds out, by tracing it once.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfgc._framework import added_losses, diverted_calls, graph_building, graph_gradients, private_api
from tfgc._pure import inner_functions, random_draws
from tfgc._pure.tensor_packing import Packing, spec_of

# What gives what stands for a variable in a trace that is never run.
StandIn: TypeAlias = Callable[[keras.Variable], Any]


IN_CUSTOM_GRADIENT = (
    "{!r} is read inside of a function with a tf.custom_gradient. Give the function the weight as an argument to let "
    "tfgc recompute it"
)
BETWEEN_INPUTS = (
    "its tf.gradients go back through an input that is made outside of it. Take gradients of what the layer computes "
    "from its inputs to let tfgc recompute it"
)


class StaleEffectsError(Exception):
    """The function read a variable that `discover` had not seen."""


class Scope(keras.StatelessScope):
    """Serves variables from a table, by id, and records all that is read and written.

    A trace that is never run has no values. When it first reads a variable, `stand_in` gives what stands for it.
    """

    def __init__(self, values: dict[int, tf.Tensor] | None, stand_in: StandIn | None = None) -> None:
        super().__init__(collect_losses=True)
        self._stand_in = stand_in
        self.obstacle: str | None = None  # why what runs here would have other gradients than outside
        self.reads: dict[int, keras.Variable] = {}
        # The ids of trainable variables that a trace without stand-ins reads in branches, and outside of them.
        self.trained_in: dict[bool, set[int]] = {True: set(), False: set()}
        self.written: dict[int, tuple[keras.Variable, tf.Tensor]] = {}
        self._strict = values is not None
        self._given = values or {}
        self._makers: dict[int, keras.Layer] = {}
        self.state_mapping.update(self._given)

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        value = self.state_mapping.get(id(variable))
        storage = private_api.storage(variable)
        if variable.trainable and diverted_calls.in_custom_gradient():
            self.obstacle = IN_CUSTOM_GRADIENT.format(variable.path)
        if value is None and self._strict and storage is not None:
            raise StaleEffectsError(variable.path)
        if value is None:
            self.reads[id(variable)] = variable
            if variable.trainable and self._stand_in is None:
                self.trained_in[graph_building.in_branch()].add(id(variable))
        if value is None and self._stand_in is not None and storage is not None:
            value = self._given[id(variable)] = self.state_mapping[id(variable)] = self._stand_in(variable)
        if value is None and storage is not None:
            # What a trace captures must be what goes past Keras; made anew for each branch that reads it. No constant,
            # of which `tf.cond` would trace one branch alone.
            value = tf.compat.v1.placeholder_with_default(tf.zeros(storage.shape, storage.dtype), storage.shape)
        return value

    def note_gradient(self, tensor: tf.Tensor) -> None:
        """Note that a derivative goes back through a tensor that is given."""
        if not any(tensor is value for value in self.state_mapping.values()):
            self.obstacle = BETWEEN_INPUTS

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        variable, value = update[0], tf.convert_to_tensor(update[1])  # It may be another variable.
        self.written[id(variable)] = (variable, value)
        given = self._given.get(id(variable)) if variable.trainable else None
        self.state_mapping[id(variable)] = tf.stop_gradient(value) if given is None else _read_after_write(given, value)

    def add_loss(self, loss: tf.Tensor) -> None:
        self._makers[id(loss)] = added_losses.maker_of_loss()
        super().add_loss(loss)

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        for loss, layer in zip(self.losses, self.loss_layers):
            added_losses.forget_loss(layer, loss)

    def apart(self, body: Callable, args: tuple, kwargs: dict, xla: bool) -> Any:
        """Call a function that needs a separate graph; its writes and losses become results of that graph."""
        packing = Packing((args, kwargs))
        runs: list[Run] = []
        tensors = packing.take_tensors()
        # Not of a branch: the other one may read the same variable.
        here = contextlib.nullcontext if tf.executing_eagerly() else tf.compat.v1.get_default_graph().as_default

        def read(variable: keras.Variable) -> tf.Tensor | None:
            with here():
                return self.get_current_value(variable)

        def pure(*tensors: tf.Tensor) -> list[tf.Tensor]:
            args, kwargs = packing.unpack(tensors)
            with Scope(None, read) as scope, inner_functions.inlined(scope.apart):
                result = body(*args, **kwargs)
            runs.append(scope.outcome(result, []))
            return runs[-1].tensors

        made = inner_functions.call_apart(pure, tensors, xla)
        return runs[-1].finish(made)

    def outcome(self, result: Any, draws: list[tf.Tensor]) -> "Run":
        """The `Run` of what was done in this scope: a function's result, and what it drew."""
        packed = Packing(result, made=True)
        tensors = [*packed.take_tensors(), *self.losses, *(value for _, value in self.written.values())]
        specs = [spec_of(t) for t in tensors]
        return Run(tensors, specs, packed, self.loss_layers, [v for v, _ in self.written.values()], draws)

    @property
    def loss_layers(self) -> list[keras.Layer]:
        """The layer that made each of `losses`."""
        return [self._makers[id(loss)] for loss in self.losses]


def _read_after_write(given: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """The new value of a variable, with gradients going to the variable."""
    # A tape sums the gradients of all its reads, whatever was written in between, and sees no path through the write.
    return graph_gradients.attached([tf.stop_gradient(value)], [given], lambda upstream: [upstream])[0]


@dataclasses.dataclass
class Run:
    """All that one run of a function did."""

    # The outputs, then the losses, then the new values of the written variables.
    tensors: list[tf.Tensor]
    specs: list[tf.TensorSpec]  # their shapes and dtypes
    packing: Packing  # the structure of the outputs
    loss_layers: list[keras.Layer]  # the layer that made each loss
    written: list[keras.Variable]
    draws: list[tf.Tensor]  # random numbers that cannot be drawn again
    results: list[tf.Tensor] = dataclasses.field(default_factory=list)  # on the way, which a replay takes over

    @property
    def differentiable(self) -> list[int]:
        """Positions in `tensors` through which gradients can flow."""
        end = len(self.specs) - len(self.written)
        return [i for i, s in enumerate(self.specs[:end]) if s.dtype.is_floating or s.dtype.is_complex]

    def finish(self, tensors: list[tf.Tensor]) -> Any:
        """Write the state, give the losses to their layers, return the value: `tensors` stand for those of the run."""
        states_at = len(tensors) - len(self.written)
        losses_at = states_at - len(self.loss_layers)
        for variable, value in zip(self.written, tensors[states_at:]):
            variable.assign(value)
        for layer, loss in zip(self.loss_layers, tensors[losses_at:states_at]):
            layer.add_loss(loss)
        return self.packing.unpack(tensors[:losses_at])


def run(
    fn: Callable,
    packing: Packing,
    tensors: Sequence[tf.Tensor],
    variables: Sequence[keras.Variable],
    values: Sequence[tf.Tensor],
    draws: Callable[[list[tf.Tensor]], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> Run:
    """Run `fn` once, without changing anything but the state of random generators.

    It may read some Keras variables of given values. `draws` is called with a list, for a context that adds the drawn
    tensors to the list, or replaces them by others.
    """
    args, kwargs = packing.unpack(tensors)
    table = {id(v): value for v, value in zip(variables, values)}
    found: list[tf.Tensor] = []
    with Scope(table) as scope, inner_functions.inlined(scope.apart), draws(found), random_draws.alike_in_both_runs():
        result = fn(*args, **kwargs)
    return scope.outcome(result, found)
