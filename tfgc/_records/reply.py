"""What child processes reply to their jobs."""

import dataclasses
from typing import Any

from tfgc._errors import TfgcError
from tfgc._records.front import FrontRecord
from tfgc._records.job import Case
from tfgc._records.measurement import Predicted, SegmentSummary


@dataclasses.dataclass(frozen=True)
class CasePrediction:
    """What is known of a case before it runs.

    Attributes:
        plan: Its plan as JSON; None for plain training and peers.
        parts: That plan's segments.
        predicted: None where its memory cannot be predicted.
        error: Why there is no plan; empty if nothing went wrong.
    """

    plan: str | None = None
    parts: tuple[SegmentSummary, ...] = ()
    predicted: Predicted | None = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class CasePredictions:
    """What a `PredictionJob` found: a `CasePrediction` by `Case.name`, and a front if it was asked for."""

    cases: dict[str, CasePrediction]
    front: FrontRecord | None = None

    def of(self, case: Case) -> CasePrediction:
        """The prediction of a case, empty if there is none."""
        return self.cases.get(case.name, CasePrediction())


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch that is predicted to fit by one way of training.

    Attributes:
        batch_size: 0 if not even one sample fits.
        needed_bytes: What the whole step of that batch needs, its data included, as `Prediction.needed_bytes` counts
            it; of one sample if none fits.
        sample_bytes: What one more sample needs.
        node: The node that runs at the peak.
        plan: The plan as JSON; None for plain training.
    """

    batch_size: int
    needed_bytes: int
    sample_bytes: float
    node: str
    plan: str | None = None


@dataclasses.dataclass(frozen=True)
class MaxBatchPrediction:
    """What a `MaxBatchJob` found.

    Attributes:
        budget_bytes, fixed_bytes: As in `MaxBatch`.
        optimizer: The optimizer that was counted, serialized.
        plain: Without recomputation.
        recomputed: By the strategy, or by any plan; None if the strategy is to recompute nothing.
    """

    budget_bytes: int
    fixed_bytes: int
    optimizer: Any
    plain: LargestBatch
    recomputed: LargestBatch | None


# Words of an error or of standard error that mean so, in Python, C++ and TensorFlow.
OUT_OF_MEMORY = (
    "MemoryError", "bad_alloc", "ResourceExhausted", "Cannot allocate memory", "failed to map segment",
    "can't start new thread", "exception:Status: 1,",  # which is how oneDNN's library counts errors
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a child process answers to a job: what it found (of a case the measured fields of a `Measurement`).

    In its place may stand a `TfgcError` that was raised, or another `failure` in one line, and whether memory ran out.
    """

    found: "dict[str, Any] | CasePredictions | MaxBatchPrediction | None" = None
    error: TfgcError | None = None
    failure: str = ""
    out_of_memory: bool = False
