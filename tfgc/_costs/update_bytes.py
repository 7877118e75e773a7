"""What an optimizer's update holds while a step in a graph runs, besides weights, slots and gradients.

TensorFlow runs an operation as soon as what it reads is there. What an update computes of slots or weights alone, such
as a momentum times its decay or a weight less its decay, is there from the start of the step until its gradient comes.
An update that looks at all gradients, such as one that clips by their norm, begins when the last one is there.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._costs import slot_bytes
from tfgc._framework import isolated_traces, keras_names
from tfgc._framework.memory_errors import OUT_OF_MEMORY

_SHAPE = (4, 4)
# Operations that hand on what is there anyway.
_NO_COPIES = frozenset(["Const", "IdentityN", "Placeholder", "ReadVariableOp"])


class Update(NamedTuple):
    """What the update of a weight holds."""

    early: float = 0.0  # tensors of the size of the weight, from the start of the step until its gradient comes
    needs_all: bool = False  # whether it waits for the gradients of all weights


_known: RecentlyUsed[Any, Update] = RecentlyUsed(64)


def of_model(model: keras.Model, optimizer: keras.Optimizer | str | None = None) -> Update:
    """The update by an optimizer, by default the one that a model is compiled with, else Adam.

    One whose update cannot be traced holds nothing, as far as is known.
    """
    given = optimizer or getattr(model, "optimizer", None) or "adam"
    # A `tf.function` that is traced meanwhile may make no variables.
    return isolated_traces.in_own_thread(lambda: of(keras_names.optimizer(given)))


def of(optimizer: Any) -> Update:
    """The update of one weight of many by an optimizer."""
    try:
        key = slot_bytes.settings(optimizer)
        found = _known.get(key)
        if found is None:
            _known[key] = found = _read(type(optimizer).from_config(optimizer.get_config()))
        return found
    except OUT_OF_MEMORY:
        raise
    except Exception:  # Constructors, configs and updates of other people's classes may do anything.
        return Update()


def early_bytes(model: keras.Model, optimizer: keras.Optimizer | str | None = None) -> list[int]:
    """The bytes that are held early for each weight that trains."""
    share = of_model(model, optimizer).early
    return [round(share * slot_bytes.variable_bytes([v])) for v in model.trainable_variables] if share else []


def _read(optimizer: Any) -> Update:
    variables = [keras.Variable(np.zeros(_SHAPE, "float32")) for _ in range(2)]
    optimizer.build(variables)
    spec = tf.TensorSpec(_SHAPE, tf.float32)
    function = tf.function(lambda *gradients: optimizer.apply(gradients, variables), autograph=False)
    graph: Any = function.get_concrete_function(spec, spec).graph
    operations = graph.get_operations()
    behind = [_behind(gradient, operations) for gradient in graph.inputs[: len(variables)]]
    late = frozenset.union(*behind)
    handles = {id(inner) for outer, inner in graph.captures if any(outer is v.value.handle for v in variables)}
    read_late = {t.ref(): t for op in late for t in op.inputs if t.op not in late}
    early = [t for t in read_late.values() if t.shape == _SHAPE and t.op.type not in _NO_COPIES]
    writing = [op for op in operations if op.type.startswith("Assign") and op not in late]
    written = [op for op in writing if id(op.inputs[0]) in handles]
    return Update((len(early) + len(written)) / len(variables), bool(frozenset.intersection(*behind)))


def _behind(gradient: tf.Tensor, operations: Iterable[tf.Operation]) -> frozenset[tf.Operation]:
    """The operations that wait for a gradient."""
    made, waiting = {gradient.ref()}, {gradient.op}
    for op in operations:
        if op.type == "IdentityN":
            made.update(y.ref() for x, y in zip(op.inputs, op.outputs) if x.ref() in made)
        elif waiting.intersection(op.control_inputs) or any(x.ref() in made for x in op.inputs):
            waiting.add(op)
            made.update(y.ref() for y in op.outputs)
    return frozenset(waiting - {gradient.op})
