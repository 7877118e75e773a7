"""Which layers of a model can run on slices of a batch, and give what they give on all of it.

Independence of the samples is read from the operations of a call. Where they do not show it (a loop, an operation that
is not known), for layers that are not Keras's own and for losses that a call adds, the call runs on noise, whole and in
slices, and both must give the same results, losses and gradients (`noise_runs`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._core.graph import Node, Ref
from tfgc._core.ignored_warnings import ignored_warnings
from tfgc._costs import batch_coupling, sample_noise
from tfgc._costs.noise_runs import NoiseRuns
from tfgc._costs.sample_noise import SAMPLES
from tfgc._error_texts import one_line
from tfgc._framework import graph_building, keras_models, tensor_attributes
from tfgc._framework.memory_errors import OUT_OF_MEMORY
from tfgc._pure import drawn_rows, functional, inner_functions, obstacles, random_draws
from tfgc._tracing.keras_graph import Program

# How the obstacle of a layer begins that has state, as BatchNormalization has unless it is frozen.
UPDATES = "updates its variable"


def read(
    program: Program, given: Mapping[Ref, Any], names: Sequence[str] | None = None
) -> tuple[dict[str, str | None], dict[Ref, tf.TensorSpec]]:
    """Why nodes of a model, by name, give something else on slices of a batch, or None; and what they make of samples.

    It ends at a node that cannot be traced. How many samples the tensors, or specs, that the nodes read from outside
    have does not matter.
    """
    found: dict[str, str | None] = {}
    nodes = [program.graph.nodes[program.graph.position[name]] for name in names or program.graph.position]
    # What the layers warn of, they do when the model trains.
    with ignored_warnings(), graph_building.scratch_graph("independence").as_default() as graph:
        table: dict[Ref, Any] = {ref: t if t is None else _placeholder(t) for ref, t in given.items()}
        for ref, tensor in table.items():
            mask = program.masks.get(ref)
            if tensor is not None and mask is not None:
                tensor_attributes.set_mask(tensor, _placeholder(tf.TensorSpec(mask.shape, mask.dtype)))
        for node in nodes:
            start = len(graph.get_operations())
            try:
                with functional.Scope(None) as scope, inner_functions.inlined(scope.apart):
                    program.run([node.name], table, training=True)
            except OUT_OF_MEMORY:
                raise
            except Exception as error:  # The layer is the user's code; a stateful one takes no other batches.
                found[node.name] = f"cannot be traced for {SAMPLES} samples ({one_line(error)})"
                break
            found[node.name] = _obstacle(program, node, table, graph.get_operations()[start:], scope)
    return found, {ref: tf.TensorSpec(t.shape, t.dtype) for ref, t in table.items() if isinstance(t, tf.Tensor)}


def _obstacle(
    program: Program,
    node: Node,
    table: Mapping[Ref, Any],
    operations: Sequence[tf.Operation],
    scope: functional.Scope,
) -> str | None:
    """Why the call of a node on symbolic tensors, some of which may carry masks, gives something else on slices."""
    operation = program.call_of(node.name)[0]
    weights = operation.trainable_variables if isinstance(operation, keras.Layer) else []
    replaced = next((v for v in weights if getattr(v, "overwrite_with_gradient", False)), None)
    if replaced is not None:
        return f"has a variable, {replaced.path!r}, whose gradient is its new value"
    for variable, _ in scope.written.values():
        if not drawn_rows.is_seed(variable):
            return f"{UPDATES} {variable.path!r} with each batch"
    written = next((op.name for op in operations if obstacles.writes(op)), None)
    if written is not None:
        return f"has an operation, {written!r}, that may change something with each batch"
    given = [ref for ref in dict.fromkeys(node.inputs) if table[ref] is not None]
    masks = {ref: tensor_attributes.mask_of(table[ref]) for ref in given}
    masked = [ref for ref in given if masks[ref] is not None]
    read = [*(table[ref] for ref in given), *(masks[ref] for ref in masked)]
    made = [table[ref] for ref in node.made]
    dense = all(isinstance(t, tf.Tensor) for t in (*read, *made))
    shown = dense and not batch_coupling.couples(operations, read, made)
    if shown and keras_models.is_keras_own(operation) and not scope.losses:
        return None
    if any(t.dtype == tf.string for t in read) and not keras_models.is_keras_own(operation):
        return "reads strings, of which those in the batch are not known when it is looked at"
    # Operations that show it do so for all values, not for what Python code reads of the batch, such as its size.
    kinds = sample_noise.kinds(() if shown and not scope.losses else operations)
    try:
        with graph_building.eagerly_recorded():
            runs = NoiseRuns(program, node, given, masked, read)
            by_rows = drawn_rows.obstacle(operations, SAMPLES, xla=False) is None  # It runs op by op.
            return runs.compared(kinds, None if by_rows else random_draws.count(operations))
    except OUT_OF_MEMORY:
        raise
    except Exception as error:  # The layer is the user's code.
        return f"cannot be run on noise, to see whether it mixes the samples of a batch ({one_line(error)})"


def _placeholder(tensor: Any) -> tf.Tensor:
    return sample_noise.placeholder(tensor if isinstance(tensor, tf.TensorSpec) else tf.convert_to_tensor(tensor))
