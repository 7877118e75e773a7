"""Paragraphs and tables as plain text of a fixed width, and names with numbers."""

import itertools
import textwrap
from collections.abc import Container, Iterable, Sequence

_WIDTH = 100
# Text that must stay on one line is joined by a space at which lines are not broken.
HARD_SPACE = "\N{NO-BREAK SPACE}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], shown: Sequence[int]) -> str:
    """The columns `shown` of the rows below their titles, the last one wrapped."""
    cells = [[row[i] for i in shown] for row in (titles, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(shown) - 1)]
    lines = []
    for *first_cells, last in cells:
        head = "".join(f"{cell:{width}}  " for cell, width in zip(first_cells, widths))
        room = max(_WIDTH - len(head), 30)
        first, *rest = textwrap.wrap(last, room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        lines += [head + first, *(" " * len(head) + line for line in rest)]
    return "\n".join(lines).replace(HARD_SPACE, " ")


def filled(paragraphs: Iterable[str]) -> str:
    """Paragraphs with their lines broken."""
    return "\n".join(textwrap.fill(words, _WIDTH, subsequent_indent="  ") for words in paragraphs)


def unused(name: str, used: Container[str], join: str = ":") -> str:
    """A name, if it is used already with the first number behind it, from 1 on, for which it is not."""
    numbered = (f"{name}{join}{number}" for number in itertools.count(1))
    return next(one for one in itertools.chain([name], numbered) if one not in used)
