"""The host's memory as options say it: what it may hold, and how fast the link to it is."""

import dataclasses
import math
import re
from typing import Any, Self

from tfgc._core.graph import Graph
from tfgc._errors import OptionError
from tfgc._units import format_bytes, parse_bytes


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """What plans may store on the host."""

    budget: int | None  # bytes that the host may hold; None: any number
    link: float | None  # bytes copied in each direction per unit of work; None: copies are taken to be free
    options: dict[str, Any]  # the options that said so, as plans note them

    @classmethod
    def of(cls, graph: Graph, host_budget: Any, bandwidth: Any, speed: Any) -> Self:
        """Check the options of a strategy, which are those of `hybrid`.

        Raise `OptionError` if a number is not positive, `speed` is missing, or the host may not hold the smallest
        checkpoint.
        """
        budget = None if host_budget is None else _byte_count("host_budget", host_budget)
        if budget is not None:
            _check_room(graph, budget, host_budget)
        options = {"host_budget": budget, "bandwidth": bandwidth, "speed": speed}
        given = {name: value for name, value in options.items() if value is not None}
        return cls(budget, _link(bandwidth, speed), given)


def _check_room(graph: Graph, budget: int, given: Any) -> None:
    sizes = {graph.bytes(ref): ref.node for node in graph.nodes for ref in node.inputs if ref.node not in graph.inputs}
    sizes.pop(0, None)
    if sizes and budget < min(sizes):
        raise OptionError(
            f"host_budget={given!r}: the smallest checkpoint, {sizes[min(sizes)]!r}, has {format_bytes(min(sizes))}: "
            "give that at least, or leave host memory out"
        )


def _link(bandwidth: Any, speed: Any) -> float | None:
    if bandwidth is None:
        if speed is not None:
            raise OptionError(f"speed={speed!r} says nothing without the link's bandwidth: give bandwidth= as well")
        return None
    per_second = _byte_count("bandwidth", bandwidth)
    if speed is None:
        raise OptionError(
            f"bandwidth={bandwidth!r} is in bytes a second, and plans count flops: give speed= in flops a second"
        )
    if isinstance(speed, bool) or not isinstance(speed, (int, float)) or not 0 < speed < math.inf:
        raise OptionError(f"speed={speed!r} is not a number of flops a second: give one such as 1e13")
    return per_second / speed


def _byte_count(name: str, size: Any) -> int:
    try:
        return parse_bytes(size)
    except OptionError:
        also = ", or a device such as 'GPU:0' to measure its link" if name == "bandwidth" else ""
        raise OptionError(f"{name}={size!r}: must be a positive number of bytes such as 12e9 or '12GB'{also}") from None


def device_of(bandwidth: Any) -> str | None:
    """The device that `bandwidth` names in place of a number of bytes; None if it names none.

    >>> device_of("GPU:0"), device_of("12GB")
    ('GPU:0', None)
    """
    named = isinstance(bandwidth, str) and re.fullmatch(r"/?(device:)?[A-Za-z_]+:\d+", bandwidth)
    return bandwidth if named else None
