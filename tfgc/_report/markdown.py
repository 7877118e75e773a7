"""Tables as Markdown, for reports, commands and documentation pages."""

import re
from collections.abc import Iterable

from tfgc._records.table import TextTable
from tfgc._terminal import printable

# Signs that are markup wherever they stand, and what begins a heading, a list or a quotation.
_ANYWHERE = re.compile(r"[\\`*\[\]|$]|~(?=\S)")
_BEGINNING = re.compile(r"^(\d*)([-+](?=[\s-]|$)|#+(?=\s|$)|>|(?<=\d)[.)](?=\s|$))")


def table(sheet: TextTable, level: int = 3) -> str:
    """A table below a heading of that level, with its caption below.

    >>> print(table(TextTable("Peaks", ("case", "peak"), [("a|b", "5 B"), ("c", "")], caption="Of one step.")))
    ### Peaks
    <BLANKLINE>
    | case | peak |
    | --- | ---: |
    | a\\|b | 5 B |
    | c | - |
    <BLANKLINE>
    Of one step.
    <BLANKLINE>
    """
    lines = [f"{'#' * level} {escape(sheet.title)}", ""]
    lines += [_row(sheet.heads), "| --- " + "| ---: " * (len(sheet.heads) - 1) + "|", *map(_row, sheet.rows), ""]
    lines += [escape(sheet.caption), ""] if sheet.caption else []
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape(cell) or "-" for cell in cells) + " |"


def escape(text: str) -> str:
    """The text in a line, with nothing in it that Markdown would take for markup.

    >>> escape("<b> 2**20 _x_ conv_1")
    '&lt;b> 2\\\\*\\\\*20 \\\\_x\\\\_ conv_1'
    """
    text = re.sub(r"&(?=#?\w+;)", "&amp;", printable(" ".join(text.split())))
    text = _ANYWHERE.sub(r"\\\g<0>", text).replace("<", "&lt;")
    # Underscores within a word are not markup.
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
    return _BEGINNING.sub(r"\1\\\2", text)
