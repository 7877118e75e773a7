"""What an optimizer's update holds while a step in a graph runs, besides weights, slots and gradients.

TensorFlow runs an operation as soon as what it reads is there. What an update computes of slots or weights alone, such
as a momentum times its decay or a weight less its decay, is there from the start of the step until its gradient comes.
An update that looks at all gradients, such as one that clips by their norm, begins when the last one is there.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfgc._core.recently_used import RecentlyUsed
from tfgc._costs import slot_bytes, update_waves
from tfgc._framework import isolated_traces, keras_names
from tfgc._framework.memory_errors import OUT_OF_MEMORY

_SHAPE = (4, 4)


class Update(NamedTuple):
    """What the update of a weight holds."""

    early: float = 0.0  # tensors of the size of the weight, from the start of the step until its gradient comes
    needs_all: bool = False  # whether it waits for the gradients of all weights
    running: float = 0.0  # tensors of that size that it makes while it runs, beside its gradient
    of_rows: float = 0.0  # the same where the gradient is of some rows of the weight


NO_UPDATE = Update()
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
            _known[key] = found = _read(_again(optimizer))
        return found
    except OUT_OF_MEMORY:
        raise
    except Exception:  # Constructors, configs and updates of other people's classes may do anything.
        return NO_UPDATE


def _read(optimizer: Any) -> Update:
    variables = [keras.Variable(np.zeros(_SHAPE, "float32")) for _ in range(2)]
    optimizer.build(variables)
    dense = _traced(optimizer, variables, lambda given: given, _SHAPE)
    rows = _SHAPE[0] // 2
    try:
        sparse = _traced(
            optimizer, variables, lambda given: tf.IndexedSlices(given, tf.range(rows), tf.constant(_SHAPE)), (rows, 4)
        )
    except OUT_OF_MEMORY:
        raise
    except Exception:  # It takes no rows.
        sparse = dense
    late = frozenset.union(*dense.behind)
    read_late = {t.ref(): t for op in late for t in op.inputs if t.op not in late}
    early = [t for t in read_late.values() if t.shape == _SHAPE and t.op.type not in update_waves.NO_COPIES]
    writing = [op for op in dense.graph.get_operations() if op.type.startswith("Assign") and op not in late]
    written = [op for op in writing if id(op.inputs[0]) in dense.handles]
    branch = _of_branch(optimizer)
    held = (dense.most_held(), sparse.most_held()) if branch is None else (branch.running, branch.of_rows)
    return Update((len(early) + len(written)) / len(variables), dense.needs_all, *held)


def _again(optimizer: Any, **changed: Any) -> Any:
    """An optimizer that is not built, with the same settings."""
    return type(optimizer).from_config({**optimizer.get_config(), **changed})


def _of_branch(optimizer: Any) -> Update | None:
    """What runs in one branch of an update that chooses: by scaled losses, or by gradients that add up over steps."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return _read(_again(inner))
    return _read(_again(optimizer, gradient_accumulation_steps=None)) if optimizer.gradient_accumulation_steps else None


class _Traced(NamedTuple):
    """The graph of an update of weights."""

    graph: Any
    gradients: list[tf.Tensor]
    behind: list[frozenset[tf.Operation]]  # what waits for each gradient
    handles: frozenset[int]  # the ids of what stands for the weights

    @property
    def needs_all(self) -> bool:
        """Whether it waits for the gradients of all weights."""
        return bool(frozenset.intersection(*self.behind))

    def most_held(self) -> float:
        """The most tensors of the size of a weight that its update holds, beside its gradient."""
        weights = len(self.gradients) if self.needs_all else 1
        return (
            update_waves.most_held(self.graph, self.gradients[:weights], self.behind[0], self.handles, _SHAPE) / weights
        )


def _traced(optimizer: Any, variables: list[keras.Variable], gradient: Callable, shape: tuple[int, ...]) -> _Traced:
    """Trace an update by gradients that `gradient` makes of tensors of a shape."""

    def update(*given: tf.Tensor) -> None:
        optimizer.apply([gradient(tensor) for tensor in given], variables)

    specs = [tf.TensorSpec(shape, tf.float32)] * len(variables)
    graph: Any = tf.function(update, autograph=False).get_concrete_function(*specs).graph
    given = graph.inputs[: len(variables)]
    handles = {id(inner) for outer, inner in graph.captures if any(outer is v.value.handle for v in variables)}
    behind = [_behind(each, graph.get_operations()) for each in given]
    return _Traced(graph, given, behind, frozenset(handles))


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
