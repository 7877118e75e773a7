"""Progress of long commands: a bar on standard error, so that tables can be piped."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfgc._terminal import printable

if TYPE_CHECKING:
    import rich.progress


@dataclasses.dataclass
class Progress:
    """A bar that counts finished tasks."""

    display: rich.progress.Progress
    task: rich.progress.TaskID

    def start(self, what: str) -> None:
        """Say what runs now."""
        self.display.update(self.task, description=printable(what))

    def done(self) -> None:
        """Count one finished task."""
        self.display.advance(self.task)


@contextlib.contextmanager
def bar(what: str, total: int, unit: str) -> Iterator[Progress]:
    """Show a bar for `total` tasks counted in `unit`, with elapsed and remaining time."""
    import rich.console
    import rich.progress

    columns = (
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        "{task.completed}/{task.total} " + unit,
        rich.progress.TimeElapsedColumn(),
        "left:",
        rich.progress.TimeRemainingColumn(),
    )
    # Cases take minutes: estimate the remaining time from all of them, not from the last half minute.
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, speed_estimate_period=10**6) as display:
        yield Progress(display, display.add_task(printable(what), total=total))
