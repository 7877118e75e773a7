"""The link between a device and its host's memory, in the unit that plans count work in."""

import math
from typing import Any

from tfgc._core.graph import Graph
from tfgc._errors import OptionError
from tfgc._simulate.work import node_work
from tfgc._units import parse_bytes


def link(graph: Graph, bandwidth: Any, speed: Any) -> float | None:
    """Bytes copied in each direction per unit of work; None if no bandwidth is given.

    Args:
        graph: The graph, whose nodes are counted in flops or were timed.
        bandwidth: Bytes a second in each direction, as a number or a text such as '12GB'.
        speed: Flops a second of the device; only where work is counted in flops.

    Raises:
        OptionError: If work is counted in flops and `speed` is missing, or a number is not positive.
    """
    if bandwidth is None:
        if speed is not None:
            raise OptionError(f"speed={speed!r} says nothing without the link's bandwidth: give bandwidth= as well")
        return None
    _, unit = node_work(graph)
    per_second = byte_count("bandwidth", bandwidth)
    if unit == "s":
        return float(per_second)
    if speed is None:
        raise OptionError(
            f"bandwidth={bandwidth!r} is in bytes a second, and this plan counts flops: give speed= in flops a second, "
            "or measure=True"
        )
    if isinstance(speed, bool) or not isinstance(speed, (int, float)) or not 0 < speed < math.inf:
        raise OptionError(f"speed={speed!r} is not a number of flops a second: give one such as 1e13")
    return per_second / speed


def byte_count(name: str, value: Any) -> int:
    """Read a number of bytes that an option of that name gives.

    >>> byte_count("host_budget", "2GB")
    2000000000
    """
    try:
        return parse_bytes(value)
    except OptionError:
        raise OptionError(f"{name}={value!r}: must be a positive number of bytes such as 12e9 or '12GB'") from None
