"""Static swapping: the least peak by storing checkpoints on the host, where the copies hide behind work.

After TFLMS (Le et al., arXiv:1807.02037), which swaps tensors to the host and back by a fixed rule. Here the cuts are
chosen as well, and a checkpoint goes to the host only if its copy back takes no longer than the backward pass of the
segment after it: no replay waits. Not nested.
"""

import dataclasses
from typing import Any

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import check_int
from tfgc._simulate import simulator
from tfgc.strategies import _judged
from tfgc.strategies._host_memory import HostMemory

# Work that replays may wait for copies, as a fraction of the plain step's
_HIDDEN = 0.01


def plan(
    graph: Graph,
    *,
    host_budget: Any = None,
    bandwidth: Any = None,
    speed: float | None = None,
    positions: int = 100,
) -> Plan:
    """Return the plan of least predicted peak among those found.

    Options are those of `hybrid`.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> plans = [tfgc.plan(model, 4096, strategy=name) for name in ("offload", "optimal")]
        >>> plans[0].outlook.peak_bytes <= plans[1].outlook.peak_bytes
        True
    """
    host = HostMemory.of(graph, host_budget, bandwidth, speed)
    judged = _judged.with_host(graph, host, check_int("positions", positions), "offload", hidden=True)
    hiding = [(found.peak_bytes, found.work, plan) for plan, found in judged if _hides(graph, plan, found)]
    return min(hiding, key=lambda each: each[:2])[2]


def _hides(graph: Graph, plan: Plan, found: simulator.Prediction) -> bool:
    """Whether replays wait for next to nothing."""
    at_once = simulator.predict(graph, dataclasses.replace(plan, link=None))
    return found.work - at_once.work <= _HIDDEN * found.plain_work
