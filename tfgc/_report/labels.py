"""Texts in plots that fit: names, units of axes and legends."""

from collections.abc import Sequence
from typing import Any

_STEPS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))


def legend(figure: Any, names: Sequence[str]) -> None:
    """Add a legend of these names below a figure."""
    figure.legend(loc="outside lower left", ncols=_columns(names), handlelength=2.2, columnspacing=1)


def _columns(names: Sequence[str]) -> int:
    """Two columns where they fit."""
    return 2 if max(map(len, names)) <= 20 else 1


def height(names: Sequence[str]) -> float:
    """The height of a legend in inches."""
    return 0.17 * -(-len(names) // _columns(names))


def short(text: str, most: int = 20) -> str:
    """The text, its middle left out where it would not fit."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2 - 1) :]}"


def unit_of(count: float) -> tuple[float, str]:
    """The unit of an axis that reaches `count` bytes: its size and its name."""
    return next(((size, name) for size, name in _STEPS if count >= size), _STEPS[-1])
