"""What was measured when a plan was confirmed; it stands among the options of the plan."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfgc._core import checked_json
from tfgc._units import format_bytes, format_percent

OPTION = "confirmed"


@dataclasses.dataclass(frozen=True)
class Confirmation:
    """What the whole step by a plan needs, weights and slots included, as TensorFlow's allocator counts it."""

    measured_bytes: int  # the most that a step in a child process needed, or what XLA's compiler laid out for one
    predicted_bytes: int
    budget_bytes: int | None = None
    runs: int = 1  # how many plans were measured
    target: str | None = None  # the GPU that they were compiled for; None where they were run

    def options(self) -> dict[str, Any]:
        """What is added to the options of the plan."""
        return {OPTION: dataclasses.asdict(self)}

    def __str__(self) -> str:
        off = self.measured_bytes / max(self.predicted_bytes, 1) - 1
        measured, predicted = format_bytes(self.measured_bytes), format_bytes(self.predicted_bytes)
        how = "measured in a child process" if self.target is None else f"laid out by XLA's compiler for {self.target}"
        text = f"{measured} {how}, {predicted} predicted ({format_percent(off, '+.1f')})"
        if self.budget_bytes is None:
            return text
        did = "measured" if self.target is None else "compiled"
        return f"{text}; budget {format_bytes(self.budget_bytes)}, plans {did} for it: {self.runs}"


def of(options: Mapping[str, Any]) -> Confirmation | None:
    """The one among the options of a plan; None if there is none."""
    try:
        return checked_json.read(Confirmation, options.get(OPTION))
    except ValueError:
        return None
