"""Branches and loops that read variables, as ones that are given their values: so they may run again.

A copy of a loop that reads a variable would read it later, when the step may have changed it. So the read moves in
front of the loop, where copies share it. A variable stays that a function does anything else with, or hands on.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

# The functions of each operation, the attribute with the types of what it hands to them, and the inputs before these.
_FUNCTIONS = {
    "While": (("cond", "body"), "T", 0),
    "StatelessWhile": (("cond", "body"), "T", 0),
    "If": (("then_branch", "else_branch"), "Tin", 1),
    "StatelessIf": (("then_branch", "else_branch"), "Tin", 1),
}
_NUMBERS = itertools.count()  # each is another function for TensorFlow's runtime


def moved_out(node: Any, functions: Mapping[str, Any]) -> tuple[dict[int, tuple[str, Any]], list[Any]]:
    """Let a node be given the values of the variables that its functions only read.

    Returns:
        For each input that is a value now the name of a function that read it, and the node that did; and the functions
        that the node calls from now on.
    """
    if node.op not in _FUNCTIONS:
        return {}, []
    attributes, types, before = _FUNCTIONS[node.op]
    if any(node.attr[name].func.name not in functions for name in attributes):
        return {}, []
    called = {name: functions[node.attr[name].func.name] for name in attributes}
    found = {}
    for i, kind in enumerate(node.attr[types].list.type):
        each = [_reads(function, i, name == "body") for name, function in called.items()]
        reads = [read for some in each if some is not None for read in some]
        if kind == tf.resource.as_datatype_enum and None not in each and reads:
            found[i] = next((f.signature.name, read) for f in called.values() for read in reads if read in f.node_def)
    if not found:
        return {}, []
    made = []
    for name, function in called.items():
        made.append(_given(function, {i: read.attr["dtype"].type for i, (_, read) in found.items()}, name == "body"))
        node.attr[name].func.name = made[-1].signature.name
    for i, (_, read) in found.items():
        node.attr[types].list.type[i] = read.attr["dtype"].type
        if "While" in node.op and i < len(node.attr["output_shapes"].list.shape):
            del node.attr["output_shapes"].list.shape[i].dim[:]
            node.attr["output_shapes"].list.shape[i].unknown_rank = True
    if "_read_only_resource_inputs" in node.attr:
        del node.attr["_read_only_resource_inputs"]
    return {i + before: each for i, each in found.items()}, made


def _reads(function: Any, i: int, is_body: bool) -> list[Any] | None:
    """The nodes that read the variable that is an argument; None if that is not all that is done with it."""
    name = function.signature.input_arg[i].name
    reads = [node for node in function.node_def if name in node.input]
    returned = [output for output, value in function.ret.items() if value == name]
    handed_on = [function.signature.output_arg[i].name] if is_body else []
    return reads if returned == handed_on and all(node.op == "ReadVariableOp" for node in reads) else None


def _given(function: Any, types: Mapping[int, int], is_body: bool) -> Any:
    """A function whose arguments of some types are values of variables, which it read before."""
    made = type(function)()
    made.CopyFrom(function)
    made.signature.name += f"_given_{next(_NUMBERS)}"
    for i, kind in types.items():
        made.signature.input_arg[i].type = kind
        if is_body:
            made.signature.output_arg[i].type = kind
        made.arg_attr.pop(i, None)
    names = {made.signature.input_arg[i].name for i in types}
    gone = {node.name: node.input[0] for node in function.node_def if node.input and node.input[0] in names}
    values = {f"{name}:value:0": argument for name, argument in gone.items()}
    del made.node_def[:]
    for node in function.node_def:
        if node.name not in gone:
            copy = made.node_def.add()
            copy.CopyFrom(node)
            copy.input[:] = [values.get(name, name) for name in node.input if name.removeprefix("^") not in gone]
    for output, value in function.ret.items():
        made.ret[output] = values.get(value, value)
    for output, name in function.control_ret.items():
        if name in gone:
            del made.control_ret[output]
            made.signature.control_output.remove(output)
    return made
