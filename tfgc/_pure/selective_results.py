"""Which results a selective replay takes over: those of products with weights, and random masks.

They are most of a layer's work and little of its memory: beside them a transformer stores attention scores and results
of activation functions, which are cheap to compute again. Korthikanti et al. 2022, arXiv:2205.05198, call it selective
recomputation; `jax.checkpoint_policies.dots_with_no_batch_dims_saveable` is such a rule. A mask is a byte for each
random number of four, and drawing takes long on CPUs.

What others of a plan's nodes read is left out: a segment may end there, which stores it without more ado.
"""

import contextlib
import contextvars
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework.replaced import within
from tfgc._pure import flop_counts
from tfgc._pure.small_results import elements

# A product is dear from so many multiplications for each element of its result on.
_DEAR = 64
# What usually follows a product, and takes nothing else of the step's activations.
_WITH_WEIGHTS = frozenset(["Add", "AddV2", "BiasAdd", "Mul"])
_MOVED = frozenset(["ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose"])
# Their gradient reads what they made, and not what they were given.
_BY_RESULT = frozenset(["Elu", "Relu", "Relu6", "Selu", "Sigmoid", "Softmax", "Tanh"])
_COMPARISONS = frozenset(["Greater", "GreaterEqual", "Less", "LessEqual"])
_SCALED = frozenset(["Add", "AddV2", "Cast", "Identity", "Mul", "Sub"])

_BOUNDARIES: contextvars.ContextVar[list[tf.Tensor] | None] = contextvars.ContextVar("boundaries", default=None)


def boundaries() -> contextlib.AbstractContextManager[list[tf.Tensor]]:
    """A context that collects the results of nodes that are made in it."""
    return within(_BOUNDARIES, [])


def note_boundary(name: str, made: Iterable[Any]) -> None:
    """Note what a node made, whatever its name."""
    noted = _BOUNDARIES.get()
    if noted is not None:
        noted += [tensor for tensor in made if isinstance(tensor, tf.Tensor)]


def selective_results(
    operations: Sequence[tf.Operation], arguments: Iterable[tf.Tensor], ends: Iterable[tf.Tensor]
) -> list[tf.Tensor]:
    """The results of products with weights in a traced function, each with the bias and scale that follow; and masks.

    Operations of its forward pass are in the order in which they were made. What depends on none of its arguments are
    weights. `ends` are results of nodes, the function's own among them.
    """
    products = _Products(operations, arguments, ends)
    found = [products.finished(op.outputs[0]) for op in operations if products.is_dear(op)]
    return [*(tensor for tensor in found if tensor is not None), *_masks(operations)]


def _masks(operations: Sequence[tf.Operation]) -> list[tf.Tensor]:
    """The results of comparing random numbers."""
    drawn: set[tf.Operation] = set()
    masks = []
    for op in operations:
        if op.type.startswith("StatelessRandomUniform"):
            drawn.add(op)
        elif any(tensor.op in drawn for tensor in op.inputs):
            drawn.update([op] if op.type in _SCALED else [])
            masks += op.outputs if op.type in _COMPARISONS else []
    return masks


class _Products:
    def __init__(
        self, operations: Sequence[tf.Operation], arguments: Iterable[tf.Tensor], ends: Iterable[tf.Tensor]
    ) -> None:
        self._active = {tensor.op for tensor in arguments}
        self._readers: dict[Any, list[tf.Operation]] = {}
        self._ends = {tensor.ref() for tensor in ends}
        for op in operations:
            if any(tensor.op in self._active for tensor in op.inputs):
                self._active.add(op)
            for tensor in op.inputs:
                self._readers.setdefault(tensor.ref(), []).append(op)

    def is_dear(self, op: tf.Operation) -> bool:
        """Whether an operation is a product of activations and weights that is dear beside its result."""
        given = [tensor.op in self._active for tensor in op.inputs]
        return any(given) and not all(given) and flop_counts.multiplications_per_element(op) >= _DEAR

    def finished(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """What is best stored of a product: behind its bias, scale and activation; None for the result of a node."""
        while tensor.ref() not in self._ends:
            readers = self._readers.get(tensor.ref(), [])
            if len(readers) != 1 or not self._finishes(readers[0], tensor):
                return tensor
            tensor = readers[0].outputs[0]
        return None

    def _finishes(self, op: tf.Operation, tensor: tf.Tensor) -> bool:
        if op.outputs[0].dtype != tensor.dtype:
            return False
        if op.type in _MOVED:
            return op.inputs[0].ref() == tensor.ref()
        others = [other for other in op.inputs if other.ref() != tensor.ref()]
        with_weights = op.type in _WITH_WEIGHTS and all(self._is_broadcast(other, tensor) for other in others)
        return (op.type in _BY_RESULT or with_weights) and elements(op.outputs[0]) == elements(tensor)

    def _is_broadcast(self, other: tf.Tensor, tensor: tf.Tensor) -> bool:
        return other.op not in self._active and elements(other) < elements(tensor)
