"""Nodes that the copy of a traced graph does without: constants that are equal to others, and plain identities.

A gradient makes a constant for each shape and axis, one like the other, and an operation costs time in every pass by
which TensorFlow optimizes a graph. Left are identities that wait for something, that are put on a device, or that are
marked by an attribute. What only makes something that is known otherwise is not needed, either.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tfgc._framework import operation_order

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


def replace(
    nodes: Mapping[str, Any], instead: Mapping[str, Sequence[str]], roots: Iterable[str], outside: Collection[str]
) -> None:
    """Let what makes the `roots` read others instead of tensors, by name.

    Read is the first one, of the tensor itself and its others, that is made of what is computed anyway, or the last.

    A size that is read of a tensor of the copy is worth more than the same one from elsewhere: Grappler knows which
    tensors are of one shape, and where it does not, it multiplies a constant by what is there first. What an attention
    scales came to be made before its gradients, and held for all blocks of a replay.
    """
    if not instead:
        return
    chosen = {source: others[-1] for source, others in instead.items()}

    def read(name: str) -> set[str]:
        sources: Iterable[str] = nodes[name].input
        return names(chosen.get(source, source) for source in sources)

    needed = operation_order.reached(roots, read, outside)
    computed = needed.union(*map(read, needed))
    for source, others in instead.items():
        near = [other for other in (source, *others[:-1]) if computed.issuperset(names(_node(nodes, other).input))]
        chosen[source] = next(iter(near), others[-1])
    for node in nodes.values():
        for i, source in enumerate(node.input):
            node.input[i] = chosen.get(source, source)


def _node(nodes: Mapping[str, Any], source: str) -> Any:
    return nodes[source.partition(":")[0]]


def names(sources: Iterable[str]) -> set[str]:
    """The nodes of which something is read, or that are waited for."""
    return {source.lstrip("^").partition(":")[0] for source in sources}
