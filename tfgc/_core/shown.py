"""How records show themselves: in one line, in at most 20 lines, and in a notebook as a table."""

import dataclasses
import html
import itertools
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

_LINES, _WIDTH = 20, 100
_LONGEST = 400  # characters of a repr: at most five lines of a terminal
_short = reprlib.Repr()
_short.maxtuple = _short.maxlist = _short.maxdict = _short.maxset = 3
_short.maxother = 80


class Brief:
    """A dataclass whose repr leaves fields out that are as by default, and shortens long values."""

    def __repr__(self) -> str:
        fields = [(field, getattr(self, field.name)) for field in dataclasses.fields(cast(Any, self))]
        given = [f"{field.name}={_short.repr(value)}" for field, value in fields if not _is_default(field, value)]
        text = f"{type(self).__name__}({', '.join(given)})"
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}...)"


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    made = field.default_factory
    return value == (field.default if made is dataclasses.MISSING else made())


def limited(lines: Sequence[str], most: int = _LINES, rest: str = "") -> list[str]:
    """The lines, the last ones replaced by their number, and by where the `rest` is, if there are more than `most`."""
    return [*lines] if len(lines) <= most else [*lines[: most - 1], f"... and {len(lines) - most + 1} more{rest}"]


class Shown:
    """What prints as a title and rows of cells; in a notebook as a table, in a list as the first line of its title."""

    _rest = ""  # where all rows are

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        """A title, heads of columns (or none) and rows; by default of the lines that the class prints itself."""
        title, *lines = str(self).split("\n")
        return title, (), [line.strip().partition(": ")[::2] for line in lines]

    def __str__(self) -> str:
        title, heads, rows = self._shown()
        lines = f"{type(self).__name__} {title}".split("\n")
        return "\n".join(limited([*lines, *_aligned([heads, *rows] if heads else rows)], rest=self._rest))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._shown()[0].partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        title, heads, rows = self._shown()
        cells = [_row("th", heads), *(_row("td", row) for row in rows)]
        caption = html.escape(f"{type(self).__name__} {title}").replace("\n", "<br>")
        lines = limited(cells, rest=html.escape(self._rest))
        more = f"<p>{lines.pop()}</p>" if len(cells) > _LINES else ""
        return f"<table><caption>{caption}</caption>{''.join(lines)}</table>{more}"


def _row(kind: str, cells: Iterable[str]) -> str:
    made = "".join(f'<{kind} style="text-align: left">{html.escape(cell)}</{kind}>' for cell in cells)
    return f"<tr>{made}</tr>" if made else ""


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, cells)) for cells in itertools.zip_longest(*rows, fillvalue="")]
    for row in rows:
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip()
        yield f"  {line}" if len(line) <= _WIDTH else f"  {line[: _WIDTH - 3]}..."
