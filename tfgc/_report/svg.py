"""Turn plots into SVG whose colours the page chooses, or into a PNG. No TensorFlow.

Plots are drawn by matplotlib in the colours of a light page. In the SVG each colour becomes a CSS custom property, so
that the page shows the same plot in dark mode. Text stays text, and equal plots give equal bytes.
"""

import contextlib
import dataclasses
import html
import io
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfgc import _files
from tfgc._core.timelines import require

WIDTH = 3.5  # inches: text of 8.5 points is 10.7 pixels high on a phone that is 360 pixels wide
INK, MUTED, LINE, CARD = "#1b2229", "#56616c", "#d7dde2", "#ffffff"
SERIES = ("#0069a8", "#b84a00", "#00775a", "#a03c75", "#7d5f00", "#5650c8")  # also distinct to colour-blind readers
MARKERS = "osD^vP*X"
_NAMES = {INK: "ink", MUTED: "muted", LINE: "line", CARD: "card"} | {c: f"s{i}" for i, c in enumerate(SERIES)}
_STEPS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes"))


@dataclasses.dataclass(frozen=True)
class Plot:
    """Something to draw."""

    subject: str  # the network that it is about; may be empty
    title: str
    alt_text: str  # the same in words, for those who cannot see it
    draw: Callable[[Any], None]  # draws on a matplotlib figure or subfigure
    height: float  # in inches

    @property
    def full_title(self) -> str:
        """The title of a plot that stands alone."""
        return f"{self.subject}: {self.title}" if self.subject else self.title


def write_png(plot: Plot, path: str | os.PathLike[str]) -> None:
    """Write one plot into a PNG file; raise `TfgcError` if `path` cannot be written."""
    _files.write(path, png([plot]))


def svg(plot: Plot, key: str) -> str:
    """The plot as an `<svg>` element for a page; `key` makes its ids differ from those of other plots."""
    file = io.StringIO()
    with _drawing(key) as matplotlib:
        figure = matplotlib.figure.Figure(figsize=(WIDTH, plot.height), layout="constrained")
        plot.draw(figure)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    for colour, name in _NAMES.items():
        text = text.replace(colour, f"var(--{name})")
    text = re.sub(r'(font: [\d.]+px) [^;"]*', r"\1 var(--font)", text)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{key}-", text)
    box = re.findall(r'viewBox="[^"]*"', text)[0]
    head = (
        f'<svg {box} role="img" aria-labelledby="{key}-title {key}-text" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{key}-title">{html.escape(plot.full_title)}</title>'
        f'<desc id="{key}-text">{html.escape(plot.alt_text)}</desc>'
    )
    text = head + text[text.index(">") + 1 :]
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def png(plots: Sequence[Plot]) -> bytes:
    """The plots below one another, as the bytes of a PNG."""
    file = io.BytesIO()
    height = sum(plot.height + 0.3 for plot in plots)
    with _drawing("png") as matplotlib:
        figure = matplotlib.figure.Figure(figsize=(WIDTH * 1.4, height * 1.4), layout="constrained")
        parts = figure.subfigures(len(plots), 1, height_ratios=[plot.height for plot in plots], squeeze=False)
        for part, plot in zip(parts[:, 0], plots):
            # matplotlib's own wrapping would read names as formulas.
            part.suptitle(textwrap.fill(short(plot.full_title, 120), 60), fontsize="large")
            plot.draw(part)
        # A PNG of more than 65536 pixels cannot be drawn.
        figure.savefig(file, format="png", dpi=min(180, 60_000 / (height * 1.4)), metadata={"Software": None})
    return file.getvalue()


@contextlib.contextmanager
def _drawing(key: str) -> Iterator[Any]:
    """matplotlib with our settings alone: not those of a `matplotlibrc` in the current folder, which may run LaTeX."""
    matplotlib = require("a report with plots", "report")
    settings = {  # Names may hold dollar signs, and characters that the font lacks.
        "svg.fonttype": "none", "svg.hashsalt": key, "text.parse_math": False, "font.size": 8.5,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "xtick.color": MUTED,
        "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": LINE,
        "grid.linewidth": 0.6, "axes.linewidth": 0.8, "legend.frameon": False, "legend.fontsize": 8,
        "hatch.linewidth": 0.8, "lines.linewidth": 1.4, "lines.markersize": 4,
    }  # fmt: skip
    with warnings.catch_warnings(), matplotlib.rc_context():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield matplotlib


def legend(figure: Any, names: Sequence[str]) -> None:
    """Add a legend of these names below a figure."""
    figure.legend(loc="outside lower left", ncols=_columns(names), handlelength=2.2, columnspacing=1)


def _columns(names: Sequence[str]) -> int:
    """Two columns where they fit."""
    return 2 if max(map(len, names)) <= 20 else 1


def legend_height(names: Sequence[str]) -> float:
    """The height of a legend in inches."""
    return 0.17 * -(-len(names) // _columns(names))


def short(text: str, most: int = 20) -> str:
    """The text, its middle left out where it would not fit."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2 - 1) :]}"


def unit_of(count: float) -> tuple[float, str]:
    """The unit of an axis that reaches `count` bytes: its size and its name."""
    return next(((size, name) for size, name in _STEPS if count >= size), _STEPS[-1])
