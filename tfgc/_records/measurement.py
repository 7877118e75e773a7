"""What was measured and predicted, as records that can be saved and rendered.

A `Measurement` is one case: one way to train one network, from one process. A `Study` is one network at one batch size:
its cases and its front of plans. `Results` are the studies of one command, which is what a results file holds.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from tfgc._core import timelines
from tfgc._core.checked_json import AnyFloat, Scalar
from tfgc._core.modes import PLAIN
from tfgc._core.shown import Shown
from tfgc._records.front import FrontRecord
from tfgc._records.predicted import Predicted, SegmentSummary
from tfgc._units import format_bytes, format_seconds

_MISSES = 0.1  # how often the true median may lie outside of an interval


@dataclasses.dataclass(frozen=True, repr=False)
class Measurement(Shown):
    """Memory and time of one way to train one network, from one process.

    Attributes:
        network: What was trained.
        case: `plain` or the strategy, with its number of segments.
        mode: `eager` (op by op), `compiled` (a loop in Python that calls compiled segments), `graph` (the step in
            `tf.function`), or `xla` (the step compiled by XLA).
        batch_size: Samples in a batch.
        status: `ok`, `oom` (it ran out of memory or was killed for it), or `failed`.
        detail: Why it failed; for a plan, how many segments it has.
        peak_bytes: The allocator's peak above what is resident between steps (weights, optimizer slots, data): the
            median over the counted steps.
        peak_bytes_max: The largest of these peaks.
        resident_bytes: What the allocator has handed out between steps.
        process_peak_bytes: Largest resident set of the process (memory_profiler).
        process_base_bytes: Resident set of the process before the first step.
        step_seconds: Median over the rounds, or over the counted steps where there were none.
        first_step_seconds: The warm-up step, tracing included.
        losses: Loss of every step, the warm-up first.
        timeline: Pairs (seconds, allocated bytes above resident) over one step.
        device: Where the bytes were counted.
        machine: Processor count, versions, and whose kernels run on the CPU.
        predicted: Its `Predicted`; None if nothing was predicted.
        parts: The plan's segments, a tuple of `SegmentSummary`; empty for plain cases.
        round_seconds: Seconds of its step in each round in which all cases took turns, in one process; empty where it
            was timed apart from the others.
    """

    network: str
    case: str
    mode: str
    batch_size: int
    status: str = "ok"
    detail: str = ""
    peak_bytes: int | None = None
    peak_bytes_max: int | None = None
    resident_bytes: int | None = None
    process_peak_bytes: int | None = None
    process_base_bytes: int | None = None
    step_seconds: float | None = None
    first_step_seconds: float | None = None
    losses: tuple[AnyFloat, ...] = ()
    timeline: tuple[tuple[float, float], ...] = ()
    device: str = ""
    machine: dict[str, Scalar] = dataclasses.field(default_factory=dict)
    predicted: Predicted | None = None
    parts: tuple[SegmentSummary, ...] = ()
    round_seconds: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Such as `plain-eager` or `sqrt(8)-graph`."""
        return f"{self.case}-{self.mode}"

    @property
    def baseline(self) -> str:
        """The name of the plain case in the same loop, such as `plain-eager` for `sqrt(8)-compiled`."""
        return f"plain-{PLAIN.get(self.mode, self.mode)}"

    @property
    def needed_bytes(self) -> int | None:
        """What a step needs, all that is held between steps included; None if it was not measured."""
        return None if self.peak_bytes is None else (self.resident_bytes or 0) + self.peak_bytes

    @property
    def predicted_needs(self) -> int | None:
        """The same as predicted; None if it was not."""
        return self.predicted and self.predicted.peak_bytes + (self.predicted.fixed_bytes or self.resident_bytes or 0)

    def plot(self) -> Any:
        """Draw the memory of one step over time, by matplotlib.

        Returns:
            The matplotlib axes: `measurement.plot().figure.savefig("step.png")`.

        Raises:
            TfgcError: If no step was measured, or matplotlib is not installed.
        """
        held = self.resident_bytes or 0
        lines = {"handed out by the allocator": [(second, held + count) for second, count in self.timeline]}
        title = self._shown()[0].removeprefix("of ")
        return timelines.draw(title, lines, "time in one step", "s", {"held between steps": held})

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        title = f"of {self.network}, batch {self.batch_size}, {self.name}: "
        if self.peak_bytes is None:
            return f"{title}{self.status}{self.detail and ', '}{self.detail}", (), ()
        held, predicted, seconds = self.resident_bytes or 0, self.predicted_needs, self.step_seconds
        found = {
            "needs": f"{format_bytes(held)} between steps and {format_bytes(self.peak_bytes)} in a step",
            "predicted": "" if predicted is None else format_bytes(predicted),
            "a step takes": "" if seconds is None else format_seconds(seconds),
            "plan": self.detail,
        }
        return f"{title}needs {format_bytes(held + self.peak_bytes)}", (), [row for row in found.items() if row[1]]

    def saved(self, baseline: "Measurement | None") -> float | None:
        """The part of what `baseline` needs that this case does not need; None where either has no figure."""
        needed, plain = self.needed_bytes, None if baseline is None else baseline.needed_bytes
        return None if needed is None or not plain else 1 - needed / plain

    def against(self, baseline: "Measurement | None") -> tuple[float | None, float | None]:
        """Cut-off and overhead against `baseline`; None where either has no figure.

        Cut-off is the fraction of the baseline's peak that is saved, weights left out of both; overhead is the time on
        top of the baseline's, as a fraction of it: the median over rounds where both took turns.
        """
        cut_off = overhead = None
        if self.peak_bytes is not None and baseline is not None and baseline.peak_bytes:
            cut_off = 1 - self.peak_bytes / baseline.peak_bytes
        if overheads := self._overheads(baseline):
            overhead = statistics.median(overheads)
        elif self.step_seconds is not None and baseline is not None and baseline.step_seconds:
            overhead = self.step_seconds / baseline.step_seconds - 1
        return cut_off, overhead

    def spread(self, baseline: "Measurement | None" = None) -> tuple[float, float] | None:
        """Where the true median of its seconds lies, or with a `baseline` its overhead, as a fraction of the baseline.

        In 9 of 10 runs; of fewer than five rounds the least and the largest. None for fewer than two.

        >>> plain = Measurement("net", "plain", "graph", 8, round_seconds=(1.0, 1.0, 2.0, 1.0, 1.0))
        >>> Measurement("net", "sqrt", "graph", 8, round_seconds=(1.25, 1.5, 2.0, 1.25, 1.5)).spread(plain)
        (0.0, 0.5)
        """
        return median_interval(self.round_seconds if baseline is None else self._overheads(baseline))

    def _overheads(self, baseline: "Measurement | None") -> list[float]:
        """The extra time of each round."""
        if baseline is None or len(baseline.round_seconds) != len(self.round_seconds):
            return []
        return [ours / theirs - 1 for ours, theirs in zip(self.round_seconds, baseline.round_seconds) if theirs]


@dataclasses.dataclass(frozen=True)
class Study:
    """One network at one batch size."""

    network: str
    batch_size: int
    records: tuple[Measurement, ...] = ()  # its cases
    front: FrontRecord | None = None  # None if none was asked for

    def record(self, name: str) -> Measurement | None:
        """The record of a name such as `plain-graph`; None if there is none."""
        return next((record for record in self.records if record.name == name), None)


@dataclasses.dataclass(frozen=True)
class Results:
    """The studies of one command, in the order in which they were made."""

    studies: tuple[Study, ...]
    command: str = ""  # the command that made them; one line each if there were several


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Where the true median lies in 9 of 10 runs; of fewer than five values the least and the largest.

    None for fewer than two. The narrowest interval between two order statistics, which holds it with a probability that
    is binomial, whatever the distribution (David & Nagaraja, Order Statistics, 2003, 7.1).

    >>> median_interval([3.0, 1.0, 2.0, 5.0, 4.0]), median_interval([1.0])
    ((1.0, 5.0), None)
    """
    count, left_out = len(values), 0
    if count < 2:
        return None
    outside = 2.0  # twice the ways of so many coins to show at most as many heads as values are left out at each end
    while (outside + 2 * math.comb(count, left_out + 1)) / 2**count <= _MISSES:
        left_out += 1
        outside += 2 * math.comb(count, left_out)
    ordered = sorted(values)
    return ordered[left_out], ordered[-1 - left_out]
