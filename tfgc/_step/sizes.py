"""The sizes of a trace that leaves some open, for arguments of known shapes, as TensorFlow infers them.

The trace is imported into a graph of its own, its arguments with their shapes and its variables with theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


def sized(
    ops: Sequence[tf.Operation], nodes: Sequence[Any], definition: Any, shapes: Mapping[tf.Operation, tf.TensorShape]
) -> Sequence[tf.Operation]:
    """The operations of a trace with all sizes that follow from the shapes of its first placeholders.

    Args:
        ops: The operations as traced.
        nodes: Of each the node, by names of one graph.
        definition: The GraphDef that holds the functions that they call.
        shapes: Of the arguments, by their placeholders; the operations as traced are returned where they do not fit.
    """
    if all(t.shape.is_fully_defined() for op in ops for t in op.outputs):
        return ops
    variables = {node.input[0]: op for op, node in zip(ops, nodes) if op.type == "ReadVariableOp"}
    made = tf.compat.v1.GraphDef()
    made.versions.CopyFrom(definition.versions)
    made.library.CopyFrom(definition.library)
    for op, node in zip(ops, nodes):
        copy = made.node.add()
        copy.CopyFrom(node)
        if op.type != "Placeholder":
            continue
        if node.name in variables:
            copy.op = "VarHandleOp"
            copy.attr["dtype"].type = variables[node.name].get_attr("dtype").as_datatype_enum
            copy.attr["shape"].shape.CopyFrom(variables[node.name].outputs[0].shape.as_proto())
        elif op in shapes:
            copy.attr["shape"].shape.CopyFrom(op.outputs[0].shape.merge_with(shapes[op]).as_proto())
    try:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(made, name="")
            found = [graph.get_operation_by_name(node.name) for node in nodes]
            for op, other in zip(ops, found):
                for traced, tensor in zip(op.outputs, other.outputs):
                    tensor.set_shape(traced.shape)  # what Python said of it
    except ValueError:
        return ops
    return found
