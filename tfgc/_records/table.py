"""A table for the terminal that fits any window: where it is too wide, each row becomes a block of lines."""

import dataclasses
from collections.abc import Iterator, Sequence

import rich.box
import rich.console
import rich.table
import rich.text

from tfgc._terminal import printable


@dataclasses.dataclass(frozen=True)
class TextTable:
    """Printable with `rich`: a table if the window has room for every cell, else a block of lines for each row."""

    title: str  # stands above; may be empty, like the caption
    heads: Sequence[str]  # names of the columns; the first, which may be empty, names a row and is flush left
    rows: Sequence[Sequence[str]]  # rows of cells, as text. Empty cells are left out of the lines
    caption: str = ""  # stands below

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.console.RenderResult:
        stacked = ["\n".join(head.split()) for head in self.heads]
        for heads, padding in ((self.heads, (0, 1)), (stacked, (0, 1)), (stacked, 0)):
            made = self._table(heads, padding)
            if console.measure(made, options=options.update(width=10_000)).maximum <= options.max_width:
                yield made
                return
        yield from self._lines()

    def _table(self, heads: Sequence[str], padding: int | tuple[int, int]) -> rich.table.Table:
        made = rich.table.Table(
            box=rich.box.SIMPLE,
            title=_text(self.title),
            caption=_text(self.caption) if self.caption else None,
            caption_justify="left",
            padding=padding,
            show_edge=bool(padding),
        )
        for i, head in enumerate(heads):
            made.add_column(_text(head), justify="right" if i else "left", no_wrap=True)
        for row in self.rows:
            made.add_row(*map(_text, row))
        return made

    def _lines(self) -> Iterator[rich.text.Text]:
        yield _text(f"{self.title}\n", style="italic")
        longest = max(map(len, self.heads[1:]), default=0)
        for row in self.rows:
            yield _text(f"{self.heads[0]} {row[0]}".strip(), style="bold", overflow="fold")
            for head, cell in zip(self.heads[1:], row[1:]):
                if cell:
                    yield _text(f"  {head:<{longest}}  {cell}", overflow="fold")
            yield rich.text.Text("")
        if self.caption:
            yield _text(self.caption)


def _text(words: str, style: str = "", overflow: rich.console.OverflowMethod | None = None) -> rich.text.Text:
    return rich.text.Text(printable(words), style=style, overflow=overflow)
