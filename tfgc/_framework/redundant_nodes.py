"""Nodes that the copy of a traced graph does without: constants that are equal to others, and plain identities.

A gradient makes a constant for each shape and axis, one like the other, and an operation costs time in every pass by
which TensorFlow optimizes a graph. Left are identities that wait for something, that are put on a device, or that are
marked by an attribute.
"""

from collections.abc import Collection, Iterable
from typing import Any

# Bytes of a node: larger ones are worth no look.
_MOST = 2**10


def bypass(nodes: Iterable[Any], kept: Collection[str]) -> None:
    """Let what reads redundant nodes, in a definition in the order in which it was traced, read what they hand on.

    Those `kept`, by name, stay as they are. The nodes themselves stay, too, unread.
    """
    constants: dict[Any, str] = {}
    instead: dict[str, str] = {}
    for node in nodes:
        for i, source in enumerate(node.input):
            if source in instead:
                node.input[i] = instead[source]
        if node.name in kept or node.device:
            continue
        if node.op == "Const" and not node.input and len(node.attr) == 2 and node.ByteSize() < _MOST:
            first = constants.setdefault(node.attr["value"].SerializeToString(), node.name)
        elif node.op == "Identity" and len(node.input) == len(node.attr) == 1:
            first = node.input[0]
        else:
            continue
        if first != node.name:
            instead[node.name] = first
            instead[f"^{node.name}"] = f"^{first.partition(':')[0]}"
