"""Progress of long work: a bar in a terminal, else a line for each part. On standard error: tables can be piped."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tfgc._errors import OptionError
from tfgc._terminal import printable

# Seconds of work after which a line says that it goes on.
PATIENCE = 2.0


class Progress:
    """Of `total` parts, counted in `unit`: a bar where there is a `display` of rich, else lines; silent by default."""

    def __init__(self, total: int = 0, unit: str = "", display: Any = None) -> None:
        self._total, self._unit, self._display, self._done, self._what = total, unit, display, 0, ""

    def start(self, what: str) -> None:
        """Say what runs now."""
        self._what = what
        if self._display is not None:
            self._display.update(0, description=printable(what))

    def done(self, what: str = "") -> None:
        """Count one finished part, and say what came of it."""
        self._done += 1
        if self._display is not None:
            self._display.advance(0)
        elif self._total:
            words = f"tfgc: {self._what}{': ' if what else ''}{what} ({self._done} of {self._total} {self._unit})"
            print(printable(words), file=sys.stderr, flush=True)


SILENT = Progress()


@contextlib.contextmanager
def bar(what: str, total: int, unit: str, shown: bool = True) -> Iterator[Progress]:
    """Show how many of `total` parts, counted in `unit`, are done, with elapsed and remaining time."""
    if not shown:
        yield SILENT
        return
    import rich.console
    import rich.progress

    console = rich.console.Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield Progress(total, unit)
        return
    columns = (
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        "{task.completed}/{task.total} " + unit,
        rich.progress.TimeElapsedColumn(),
        "left:",
        rich.progress.TimeRemainingColumn(),
    )
    # Cases take minutes: estimate the remaining time from all of them, not from the last half minute.
    with rich.progress.Progress(*columns, console=console, speed_estimate_period=10**6) as display:
        display.add_task(printable(what), total=total)
        yield Progress(total, unit, display)


@contextlib.contextmanager
def patient(what: str, shown: bool = True) -> Iterator[None]:
    """Say in a line what goes on, if it takes longer than `PATIENCE`."""
    words = printable(f"tfgc: {what} ...")
    timer = threading.Timer(PATIENCE, print, [words], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    if shown:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_verbose(verbose: int) -> bool:
    """Whether to print progress; raise `OptionError` for what is neither 0 nor 1."""
    if verbose not in (0, 1):
        raise OptionError(f"verbose={verbose!r}: must be 0 or 1")
    return bool(verbose)
