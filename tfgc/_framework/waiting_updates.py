"""Let what an optimizer's update computes without a gradient wait for the gradient.

TensorFlow's executor runs whatever is ready. So in a graph a momentum times its decay, or a weight less its decay, is
there from the start of the step until its gradient comes: one buffer of the size of each weight for AdamW or momentum,
two for Lion. In a graph in which something is recomputed, each such operation gets a control edge from the gradient
that its result is used with. Values do not change.

Invariant: an edge leads from a gradient, which was there before the update was traced, to an operation of the update.
No gradient waits for an update that is made after it, so there is no circle.

Left alone are the updates that replicas of a strategy make together, and XLA, which orders operations by itself.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import in_place_updates, kept_gradients, private_api
from tfgc._framework.versions import attribute

_WAITS = "tfgc_updates_wait"  # the attribute of a graph where updates wait, and of the method that sees to it


def wait_in_this_graph() -> None:
    """Let the updates by Keras's optimizers in the graph being built wait for their gradients."""
    setattr(tf.compat.v1.get_default_graph(), _WAITS, True)
    if not hasattr(keras.optimizers.Optimizer.apply, _WAITS):
        # Once for all: threads that trace at the same time could not take it back in order.
        keras.optimizers.Optimizer.apply = _waiting(keras.optimizers.Optimizer.apply)


def _waiting(apply: Any) -> Any:
    @functools.wraps(apply)
    def waiting(self: Any, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if not hasattr(graph, _WAITS) or private_api.in_xla() or tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return apply(self, grads, trainable_variables)
        gradients, before = list(grads), len(graph.get_operations())
        given = None if trainable_variables is None else list(trainable_variables)
        made = apply(self, gradients, given)
        variables, update = private_api.updated_by(self, given), graph.get_operations()[before:]
        in_place_updates.bypass_identities(update)
        by_handle = _gradients_by_handle(graph, gradients, variables)
        _Update(graph, before, by_handle).wait()
        if len(gradients) > 1:  # of many updates in a graph, one weight each, each would look at all of it
            needed = in_place_updates.needed_by(update)
            in_place_updates.wait_for_readers(graph, update, variables, needed)
            kept_gradients.wait_for_kept(graph, by_handle.values(), needed)
        return made

    setattr(waiting, _WAITS, True)
    return waiting


def _gradients_by_handle(graph: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> dict[Any, tf.Tensor]:
    """The gradients that a graph computes, by the handles of their variables in it."""
    given: dict[int, tf.Tensor] = {}
    for gradient, variable in zip(gradients, variables):
        tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        if tf.is_symbolic_tensor(tensor) and tensor.graph is graph:
            given.update({id(handle): tensor for handle in private_api.handles(variable)})
    return {inner.ref(): given[id(outer)] for outer, inner in graph.captures if id(outer) in given}


class _Update:
    """The operations of an update, all but the first `before` of a graph, in the order in which they were made."""

    def __init__(self, graph: Any, before: int, gradients: Mapping[Any, tf.Tensor]) -> None:
        operations = graph.get_operations()
        self._made, self._gradients = operations[before:], gradients
        # In which order gradients were made; one alone, of many updates in a graph, needs no look at the others.
        earlier = operations[:before] if len(gradients) > 1 else [gradient.op for gradient in gradients.values()]
        self._position = {op: i for i, op in enumerate(earlier)}
        # Operations that wait for gradients, and the one of these that was made last.
        self._late: dict[tf.Operation, tf.Operation] = {}
        behind = {gradient.ref(): gradient.op for gradient in gradients.values()}
        for op in self._made:
            if op.type == "IdentityN":
                behind.update({y.ref(): behind[x.ref()] for x, y in zip(op.inputs, op.outputs) if x.ref() in behind})
                continue
            awaited = [behind[x.ref()] for x in op.inputs if x.ref() in behind]
            awaited += [self._late[other] for other in op.control_inputs if other in self._late]
            if awaited:
                self._late[op] = last = max(awaited, key=self._position.__getitem__)
                behind.update({y.ref(): last for y in op.outputs})

    def wait(self) -> None:
        """Let operations without a gradient wait for the one that their results are used with first."""
        early = set(self._made).difference(self._late)
        for op in self._made:
            gradient = self._late.get(op) or self._gradient_of_written(op, early)
            waiting = [] if gradient is None else [x.op for x in op.inputs]
            while waiting:
                other = waiting.pop()
                if other in early:
                    early.remove(other)
                    waiting += [x.op for x in other.inputs]
                    if other.type != "ReadVariableOp" and any((y.shape.num_elements() or 0) > 1 for y in other.outputs):
                        attribute(other, "_add_control_inputs")([gradient])

    def _gradient_of_written(self, op: tf.Operation, early: set[tf.Operation]) -> tf.Operation | None:
        """For what writes to a variable, the gradient of a variable that it reads or writes."""
        if not op.type.startswith("Assign"):
            return None
        found, seen, reading = [], {op}, [op]
        while reading:
            for x in reading.pop().inputs:
                if x.ref() in self._gradients:
                    found.append(self._gradients[x.ref()].op)
                elif x.op in early and x.op not in seen:
                    seen.add(x.op)
                    reading.append(x.op)
        return max(found, key=self._position.__getitem__, default=None)
