"""Turn what is drawn with matplotlib into SVG whose colours the page chooses, or into a PNG. No TensorFlow.

Everything is drawn in the colours of a light page. In the SVG each of them becomes a CSS custom property, so that
the page shows the same picture in the dark. Text stays text, and equal drawings give equal bytes.
"""

import contextlib
import dataclasses
import html
import io
import re
import warnings
from collections.abc import Callable

from tfgc._report import comparison

WIDTH = 3.5  # inches: text of 8.5 points is 10.7 pixels high on a phone that is 360 pixels wide
INK, MUTED, LINE, CARD = "#1b2229", "#56616c", "#d7dde2", "#ffffff"
SERIES = ("#0069a8", "#b84a00", "#00775a", "#a03c75", "#7d5f00", "#5650c8")  # told apart by the colour-blind
MARKERS = "osD^vP*X"
_NAMES = {INK: "ink", MUTED: "muted", LINE: "line", CARD: "card"} | {c: f"s{i}" for i, c in enumerate(SERIES)}


@dataclasses.dataclass(frozen=True)
class Picture:
    """Something to draw.

    Attributes:
        of: What it is of: a network, or nothing.
        title: What it shows.
        told: The same in words, for who cannot see it.
        draw: A function that draws on a matplotlib figure or subfigure.
        height: In inches.
    """

    of: str
    title: str
    told: str
    draw: Callable
    height: float


def require():
    """Import matplotlib, or say which extra brings it."""
    return comparison.require_matplotlib("a report with pictures", "report")


def name(picture):
    """The whole title, for where the picture stands alone."""
    return f"{picture.of}: {picture.title}" if picture.of else picture.title


def svg(picture, key):
    """The picture as an `<svg>` element to stand inside of a page; `key` sets its ids apart from other pictures'."""
    file = io.StringIO()
    with _drawing(key) as matplotlib:
        figure = matplotlib.figure.Figure(figsize=(WIDTH, picture.height), layout="constrained")
        picture.draw(figure)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: _property(found[0]), text)
    text = re.sub(r'(font: [\d.]+px) [^;"]*', r"\1 var(--font)", text)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{key}-", text)
    box = re.search(r'viewBox="[^"]*"', text)[0]
    head = (
        f'<svg {box} role="img" aria-labelledby="{key}-title {key}-told" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{key}-title">{html.escape(name(picture))}</title>'
        f'<desc id="{key}-told">{html.escape(picture.told)}</desc>'
    )
    text = head + text[text.index(">") + 1 :]
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def _property(colour):
    return f"var(--{_NAMES[colour]})" if colour in _NAMES else colour


def png(pictures):
    """All pictures below one another, as the bytes of a PNG."""
    file = io.BytesIO()
    height = sum(picture.height + 0.3 for picture in pictures)
    with _drawing("png") as matplotlib:
        figure = matplotlib.figure.Figure(figsize=(WIDTH * 1.4, height * 1.4), layout="constrained")
        parts = figure.subfigures(len(pictures), 1, height_ratios=[p.height for p in pictures], squeeze=False)
        for part, picture in zip(parts[:, 0], pictures):
            part.suptitle(name(picture), fontsize="large", wrap=True)
            picture.draw(part)
        # A PNG of more than 65536 pixels cannot be drawn.
        figure.savefig(file, format="png", dpi=min(180, 60_000 / (height * 1.4)), metadata={"Software": None})
    return file.getvalue()


@contextlib.contextmanager
def _drawing(key):
    """Settings for drawing, and matplotlib. Names may hold dollars, and signs that matplotlib's font has not."""
    matplotlib = require()
    settings = {
        "svg.fonttype": "none", "svg.hashsalt": key, "text.parse_math": False, "font.size": 8.5,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "xtick.color": MUTED,
        "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": LINE,
        "grid.linewidth": 0.6, "axes.linewidth": 0.8, "legend.frameon": False, "legend.fontsize": 8,
        "hatch.linewidth": 0.8, "lines.linewidth": 1.4, "lines.markersize": 4,
    }  # fmt: skip
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield matplotlib
