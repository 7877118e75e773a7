"""Bytes of the lists of tensors that a loop fills, one entry a trip: what a recurrent layer keeps."""

from typing import Any

import tensorflow as tf

from tfgc._core.tensors import itemsize


def list_bytes(tensor: tf.Tensor, gains: dict[str, dict[int, int]]) -> int:
    """Bytes of a list: what a loop puts into it, once a trip, or the tensor that it was made of.

    `gains` are those of the graph's loops.
    """
    if tensor.op.type == "TensorListFromTensor":
        return tensor_bytes(tensor.op.inputs[0])
    if not _is_loop(tensor.op):
        return 0
    return _trips(tensor.op) * gains.get(tensor.op.get_attr("body").name, {}).get(tensor.value_index, 0)


def tensor_bytes(tensor: tf.Tensor) -> int:
    """Bytes of a tensor of known shape; 0 for resources and variants. A string is its handle, as in `Spec.bytes`."""
    count = tensor.shape.num_elements()
    if count is None or tensor.dtype in (tf.resource, tf.variant):
        return 0
    return count * itemsize(tensor.dtype.name)


def _is_loop(op: tf.Operation) -> bool:
    return op.type in ("While", "StatelessWhile")


def _trips(loop: tf.Operation) -> int:
    """How often a loop runs: the longest list of tensors that it walks over."""
    lengths = [t.op.inputs[0].shape[0] for t in loop.inputs if t.op.type == "TensorListFromTensor"]
    reserved = [tf.get_static_value(t.op.inputs[1]) for t in loop.inputs if t.op.type == "TensorListReserve"]
    return max((int(n) for n in [*lengths, *reserved] if n is not None), default=1)


def gains_in_loops(graph: Any) -> dict[str, dict[int, int]]:
    """For each function of a graph with loops: bytes that each of its outputs gains in one trip."""
    bodies: dict[str, dict[int, int]] = {}
    if not any(map(_is_loop, graph.get_operations())):
        return bodies
    for function in graph.as_graph_def(add_shapes=True).library.function:
        nodes = {node.name: node for node in function.node_def}
        # What a trip starts with is an argument, and no node.
        shapes = {argument.name: function.arg_attr[i] for i, argument in enumerate(function.signature.input_arg)}
        shapes = {name: found.attr["_output_shapes"].list.shape for name, found in {**shapes, **nodes}.items()}
        gains = {}
        for i, argument in enumerate(function.signature.output_arg):
            node = _maker(nodes, function.ret[argument.name])
            if node is None or node.op not in ("TensorListPushBack", "TensorListSetItem"):
                continue
            name, *port = node.input[1 if node.op == "TensorListPushBack" else 2].split(":")
            item = shapes.get(name)
            made_by = _maker(nodes, name)
            # What reads a variable puts the one buffer of the variable into a list, at each trip.
            if item and not (made_by is not None and made_by.op == "ReadVariableOp"):
                shape = tf.TensorShape(item[int(port[1]) if port else 0])
                gains[i] = (shape.num_elements() or 0) * tf.as_dtype(node.attr["element_dtype"].type).size
        bodies[function.signature.name] = gains
    return bodies


def _maker(nodes: dict[str, Any], tensor: str) -> Any:
    """The node that makes a tensor of a function, behind identities; None for an argument."""
    node = nodes.get(tensor.partition(":")[0])
    return _maker(nodes, node.input[0]) if node is not None and node.op == "Identity" else node
