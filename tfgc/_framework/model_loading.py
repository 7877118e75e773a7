"""Loads of saved models that end, whatever the file says.

Keras rebuilds a functional model in passes: a node whose inputs do not exist yet is tried again in the
next pass. Before a release of Keras that checks it (3.15 does, 3.13 does not), passes never end where the
inputs of a node never come, or where two layers have one name, of which the first is not visited.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from tfgc._framework.diverted_calls import replaced
from tfgc._framework.internals import functional
from tfgc._framework.versions import attribute


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Raise a ValueError out of `keras.models.load_model` in here where a pass over a model's nodes makes none."""
    deserialize: Any = attribute(functional, "deserialize_node")
    rebuild: Any = attribute(functional, "functional_from_config")
    # Holds the nodes, so that no other gets the id of one of them.
    tries: dict[int, tuple[Any, int]] = {}

    def tried(node: Any, layers: dict[str, Any]) -> Any:
        before = tries.get(id(node), (node, 0))[1]
        # A pass that goes on makes one node at least, so that a node is tried at most once more than there are nodes.
        if before > sum(len(attribute(layer, "_inbound_nodes")) for layer in layers.values()):
            raise ValueError("its graph has a loop, or a node whose inputs do not exist")
        tries[id(node)] = node, before + 1
        return deserialize(node, layers)

    def rebuilt(cls: Any, config: dict[str, Any], custom_objects: Any = None) -> Any:
        names = [layer["name"] for layer in config["layers"]]
        if len(set(names)) < len(names):
            raise ValueError("two layers have one name")
        return rebuild(cls, config, custom_objects=custom_objects)

    with replaced(functional, "deserialize_node", tried), replaced(functional, "functional_from_config", rebuilt):
        yield
