"""What was measured when a plan was confirmed; it stands among the options of the plan."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfgc._core import checked_json
from tfgc._units import format_measured

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
        text = format_measured(self.measured_bytes, self.predicted_bytes, self.budget_bytes)
        how = "run in a child process" if self.target is None else f"compiled by XLA for {self.target}"
        return f"{text[0].upper()}{text[1:]}; plans {how}: {self.runs}"


def of(options: Mapping[str, Any]) -> Confirmation | None:
    """The one among the options of a plan; None if there is none."""
    try:
        return checked_json.read(Confirmation, options.get(OPTION))
    except ValueError:
        return None
