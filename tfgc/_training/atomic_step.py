"""A training step that can be taken back if it fails before its update.

Weights and optimizer slots are not copied: the optimizer waits for all gradients, so that a forward or backward pass
that fails leaves them as they were. What else a step writes (statistics, seeds, metrics) is put back. TensorFlow shares
the memory of a tensor that was read from a variable until the variable is written, so holding what was read costs only
the bytes of what the step writes.

- In a graph, the trace shows what is written outside of the update; that alone is held. Weights are updated one by one.
- In eager steps every variable of the model is held until the update begins. Then the optimizer writes in place again.
- Under XLA every variable of model and optimizer is held during the step, which writes other memory. Otherwise
  TensorFlow gives XLA the memory of what the step writes, and loses these values where XLA then finds no memory.

Known weaknesses. A step that fails in its update can be taken back under XLA alone. Draws of raw `tf.random`
operations, whose state is inside TensorFlow, and what Python code has done cannot be taken back.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import concrete_functions, isolated_traces, keras_state, private_api, python_random
from tfgc._framework.diverted_calls import replaced
from tfgc._framework.layer_values import plain_variables


class AtomicStep:
    """Runs a training step in a mode ("compiled" in Python, "graph", or "xla") so that it can be taken back.

    One that writes what cannot be put back is refused where it `must` be.
    """

    def __init__(
        self, model: keras.Model, optimizers: Sequence[keras.Optimizer], mode: str, *, must: bool = True
    ) -> None:
        self._model, self._optimizers, self._mode, self._must = model, optimizers, mode, must
        self._foreign = ""  # an operation of the step that may write what cannot be put back
        self._begun = tf.Variable(False, trainable=False, name="update_has_begun")  # pyright: ignore[reportArgumentType]
        self._written: dict[int, tf.Variable] = {}
        self._held: list[tuple[tf.Variable, tf.Tensor]] = []
        # The ids of the variables that metrics, and layers that do not train them, had before the step
        self._counting: set[int] = set()
        self._states: set[int] = set()
        self._plain = plain_variables(model)
        self._global_seed: Any = None
        self._streams: Any = None

    def around(self, step: Callable) -> Callable:
        """The step with an update that waits for all gradients, to be traced or run in Python."""

        def run(*args: Any) -> Any:
            updates: list[range] = []
            with contextlib.ExitStack() as stack:
                for optimizer in self._optimizers:
                    stack.enter_context(self._updating_last(optimizer, updates))
                made = step(*args)
            if not tf.executing_eagerly():
                self._learn(updates)
            return made

        return run

    def begin(self) -> None:
        """Hold what the next step may write."""
        self._begun.assign(False)
        self._streams, self._global_seed = python_random.state(), keras_state.global_seed()
        self._counting = set(map(id, self._model.metrics_variables))
        if self._mode == "compiled":
            self._states = set(map(id, self._model.non_trainable_variables))
        self._held = _read(self._written.values() if self._mode == "graph" else self._all())

    def _all(self) -> list[tf.Variable]:
        """The variables of the model and its metrics, of Keras's global seed, and plain ones that layers hold."""
        known = [*self._model.variables, *self._model.metrics_variables]
        seed = keras_state.global_seed()
        if seed is not None:
            known.append(seed.state)
        if self._mode == "xla":
            known += [variable for optimizer in self._optimizers for variable in optimizer.variables]
        found = [*self._plain, *(private_api.storage(variable) for variable in known), *self._written.values()]
        return list({id(variable): variable for variable in found if variable is not None}.values())

    def end(self) -> None:
        """Hold nothing any longer, after a step that did not fail."""
        self._held = []

    def take_back(self) -> str | None:
        """Undo the step that failed since `begin`; return why if that is not possible."""
        obstacle = self._obstacle()
        if obstacle is None:
            for variable, value in self._held:
                variable.assign(value)
            for metric in self._model.metrics:
                if not self._counting.issuperset(map(id, metric.variables)):  # made by the step, as Keras's of outputs
                    metric.reset_state()
            keras_state.set_global_seed(self._global_seed)
            python_random.rewind(self._streams)
        self._held = []
        return obstacle

    def _obstacle(self) -> str | None:
        if self._mode != "xla" and bool(self._begun.numpy()):
            return "It failed in its update, so some weights may be updated and others not: load them again"
        if self._foreign:
            return f"Its operation {self._foreign!r} may have written what cannot be put back, so it is not run again"
        states = self._model.non_trainable_variables if self._mode == "compiled" else []
        made = next((v.path for v in states if id(v) not in self._states), None)
        if made is not None:
            return f"It made variables, such as {made!r}, that it may have moved: build the layers before they train"
        return None

    @contextlib.contextmanager
    def _updating_last(self, optimizer: keras.Optimizer, updates: list[range]) -> Iterator[None]:
        apply: Callable = optimizer.apply

        def wait_and_apply(grads: Iterable[Any], trainable_variables: Any = None) -> Any:
            if isolated_traces.is_watched():  # a trace for a plan that is made in the step, where updates are noted
                return type(optimizer).apply(optimizer, grads, trainable_variables)
            gradients, start = list(grads), _operations()
            if not optimizer.built and trainable_variables is not None:
                trainable_variables = list(trainable_variables)
                with tf.init_scope():  # what waits for gradients cannot be lifted out of the trace
                    optimizer.build(trainable_variables)
            inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
            # Not only what reads gradients waits: iterations are counted without them.
            with self._after(gradients), _one_by_one(inner):
                made = apply(gradients, trainable_variables)
            updates.append(range(start, _operations()))
            return made

        with replaced(optimizer, "apply", wait_and_apply):
            yield

    @contextlib.contextmanager
    def _after(self, gradients: list[Any]) -> Iterator[None]:
        """Let all that is done in here wait until the gradients are there and the update is marked as begun."""
        if tf.executing_eagerly():
            self._held = []
            self._begun.assign(True)
            yield
            return
        tensors = [tensor for tensor in tf.nest.flatten(gradients, expand_composites=True) if tensor is not None]
        with tf.control_dependencies(tensors):
            begun = self._begun.assign(True, read_value=False)
        with tf.control_dependencies([begun]):
            yield

    def _learn(self, updates: list[range]) -> None:
        """Hold, from before the step that is being traced, all that it writes outside of the update."""
        graph: Any = tf.compat.v1.get_default_graph()
        inside = {i for update in updates for i in update}
        outside = [op for i, op in enumerate(graph.get_operations()) if i not in inside]
        variables, others = concrete_functions.written_variables(graph, outside, self._all())
        self._foreign = others[0] if others else self._foreign
        if others and self._must:
            raise UnsupportedModelError(
                f"on_oom='replan': operation {others[0]!r} of the step may write what is no variable and cannot be put "
                "back when the step runs out of memory. Keep state in variables, or leave on_oom out"
            )
        new = [v for v in variables if id(v) not in self._written and v is not self._begun]
        self._written |= {id(v): v for v in new}
        with tf.init_scope():
            self._held += _read(new)


@contextlib.contextmanager
def _one_by_one(optimizer: keras.Optimizer) -> Iterator[None]:
    """Let each weight wait for the update of the one before: all gradients are there, and all would start at once."""
    update: Callable = optimizer.update_step
    before: list[tf.Operation] = []

    def in_turn(*args: Any) -> None:
        if tf.executing_eagerly():
            update(*args)
            return
        graph, start = tf.compat.v1.get_default_graph(), _operations()
        with tf.control_dependencies([operation for operation in before if operation.graph is graph]):
            update(*args)
        before[:] = graph.get_operations()[start:] or before

    with replaced(optimizer, "update_step", in_turn):
        yield


def _operations() -> int:
    """How many operations the graph being built has."""
    return 0 if tf.executing_eagerly() else len(tf.compat.v1.get_default_graph().get_operations())


def _read(variables: Iterable[tf.Variable]) -> list[tuple[tf.Variable, tf.Tensor]]:
    """The variables that have values, each with its value, which shares its memory."""
    return [
        (variable, tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype))
        for variable in variables
        if tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    ]
