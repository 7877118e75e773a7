"""The user names the layers whose outputs are checkpoints.

The "collection" mode of TF1's gradient-checkpointing. The model is cut after each named layer, and every tensor alive
there is stored. O(n).
"""

import re
from collections.abc import Collection
from typing import Any

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, did_you_mean


def plan(graph: Graph, *, keep: Collection[str]) -> Plan:
    """Cut after the layers named in `keep` (names as in `model.summary()`).

    A layer that is called more than once is cut after every call; its second call alone is `layer:1`, while the first
    cannot be named alone. Layers of a nested model are named `model/layer`; the name of the nested model itself means a
    cut after its last layer.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, name=f"dense_{i}") for i in range(6)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> plan = tfgc.plan(model, strategy="manual", keep=["dense_3"])
        >>> [len(segment.nodes) for segment in plan.segments]
        [8, 4]
    """
    names, calls = check(keep), _calls(graph)
    cuts = []
    for name in names:
        if name not in calls:
            raise OptionError(f"keep: there is no layer {name!r} in the model{did_you_mean(name, calls)}")
        cuts += [i + 1 for i in calls[name] if i + 1 < len(graph)]
    return Plan.from_cuts(graph, cuts, strategy="manual", options={"keep": names})


def check(keep: Any) -> list[str]:
    """The names of the layers to cut behind; `OptionError` if those are no names, or none."""
    keep = [keep] if isinstance(keep, str) else keep
    names = list(keep) if isinstance(keep, Collection) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"keep={keep!r}: name the layers to checkpoint in a list, such as keep=['conv1']")
    return names


def _calls(graph: Graph) -> dict[str, list[int]]:
    """The last node of each call of a layer or a nested model, by the names of the call and of what is called."""
    last: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        parts = node.name.split("/")
        last.update({"/".join(parts[: n + 1]): i for n in range(len(parts))})
    found: dict[str, list[int]] = {}
    for call, i in last.items():
        for name in {call, re.sub(r":\d+", "", call)}:
            found.setdefault(name, []).append(i)
    return found
