"""One measured case, as a record that can be saved, read and rendered."""

import dataclasses
import json

from tfgc._errors import TfgcError

_FORMAT = "tfgc-measurements"
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Memory and time of one way to train one network, from one process.

    Attributes:
        network: What was trained.
        case: `plain` or the strategy, with its number of segments.
        mode: `eager` (calls in Python) or `graph` (the step in `tf.function`).
        batch_size: Samples in a batch.
        status: `ok`, `oom` (it ran out of memory or was killed for it) or `failed`.
        detail: Why it failed; for a plan, how many segments it has.
        peak_bytes: Median over the counted steps of the allocator's peak above
            what is resident between steps (weights, optimizer, data).
        peak_bytes_max: The largest of them.
        resident_bytes: What is resident between steps.
        process_peak_bytes: Largest resident set of the process (memory_profiler).
        process_base_bytes: Resident set of the process before the first step.
        step_seconds: Median over the counted steps.
        first_step_seconds: The warm-up step, tracing included.
        losses: Loss of every step, the warm-up first.
        timeline: Pairs (seconds, allocated bytes) over one step.
        device: Where the bytes were counted.
        machine: Processor count and versions.
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
    losses: tuple = ()
    timeline: tuple = ()
    device: str = ""
    machine: dict = dataclasses.field(default_factory=dict)

    @property
    def name(self):
        """Such as `plain-eager` or `sqrt(8)-graph`."""
        return f"{self.case}-{self.mode}"

    def against(self, baseline):
        """Cut-off and overhead against `baseline`; None where either has no figure.

        Cut-off is the part of the baseline's peak that is saved, weights left out
        of both; overhead the part of its time that comes on top.
        """
        cut_off = overhead = None
        if self.peak_bytes is not None and baseline is not None and baseline.peak_bytes:
            cut_off = 1 - self.peak_bytes / baseline.peak_bytes
        if self.step_seconds is not None and baseline is not None and baseline.step_seconds:
            overhead = self.step_seconds / baseline.step_seconds - 1
        return cut_off, overhead


def to_json(records, command=""):
    """Write measurements as a JSON text, a record a line."""
    head = json.dumps({"format": _FORMAT, "version": _VERSION, "command": command})
    lines = ",\n".join(json.dumps(dataclasses.asdict(r)) for r in records)
    return f'{head[:-1]}, "records": [\n{lines}\n]}}\n'


def from_json(text):
    """Read what `to_json` wrote; raise `TfgcError` if it is something else."""
    try:
        data = json.loads(text)
        if data["format"] != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        if data["version"] > _VERSION:
            raise TfgcError(f"the results are of version {data['version']}, this tfgc reads up to {_VERSION}: upgrade")
        return [
            Measurement(**{**r, "losses": tuple(r["losses"]), "timeline": tuple(map(tuple, r["timeline"]))})
            for r in data["records"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise TfgcError(f"not a file of measurements, or a damaged one: {error}") from error
