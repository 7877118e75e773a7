"""Where segments end: what they read from outside, what others read of them, and what stays on the device for that."""

from collections.abc import Sequence

from tfgc._core.graph import Graph, Ref


def boundary_tensors(
    graph: Graph, names: Sequence[str]
) -> tuple[tuple[Ref, ...], tuple[Ref, ...], dict[str, list[Ref]]]:
    """What nodes read from outside, what others read of them, and for each node what no one reads after it."""
    inside = set(names)
    needed: dict[Ref, None] = {}
    last: dict[Ref, str] = {}
    for name in names:
        node = graph.nodes[graph.position[name]]
        needed.update((ref, None) for ref in node.inputs if ref.node not in inside)
        last.update((ref, name) for ref in node.inputs)
        last.update((Ref(name, i), name) for i in range(len(node.outputs)))
    outside = {ref for node in graph.nodes if node.name not in inside for ref in node.inputs} | set(graph.outputs)
    produced = tuple(ref for ref in graph.specs if ref.node in inside and ref in outside)
    release: dict[str, list[Ref]] = {}
    for ref, name in last.items():
        if ref not in outside or ref.node not in inside:
            release.setdefault(name, []).append(ref)
    return tuple(needed), produced, release
