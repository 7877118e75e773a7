"""Keep, recompute and offload, chosen together: the least work for two budgets, of the device and of the host.

A hybrid of recomputation and offloading after Beaumont et al., "Efficient Combination of Rematerialization and
Offloading for Training DNNs" (POFO), NeurIPS 2021, for any graph in its fixed order; see `_passes`. One replay, not
nested. The simulator judges the plans: copies to the host and back included, and the time that replays wait for them.
"""

from typing import Any

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import check_int
from tfgc.strategies import _judged
from tfgc.strategies._host_memory import HostMemory


def plan(
    graph: Graph,
    *,
    budget: int,
    host_budget: Any = None,
    bandwidth: Any = None,
    speed: float | None = None,
    positions: int = 40,
) -> Plan:
    """Return the plan of least work whose predicted peak is at most `budget` bytes, and `host_budget` on the host.

    `bandwidth` is that of the link in bytes a second, `speed` the device's flops a second, which is needed unless
    layers were timed; without them copies count as free.

    Example:
        >>> import keras, tfgc
        >>> layers = [keras.layers.Dense(8, activation="gelu") for _ in range(9)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> plan = tfgc.plan(model, 4096, strategy="hybrid", budget="60%", host_budget="1MB")
        >>> sum(segment.host_bytes or 0 for segment in plan.segments) <= 1_000_000
        True
    """
    host = HostMemory.of(graph, host_budget, bandwidth, speed)
    return _judged.cheapest(_judged.with_host(graph, host, check_int("positions", positions), "hybrid", budget), budget)
