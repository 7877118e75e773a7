"""The jobs of child processes (measure a case, predict a network's cases, or its largest batch), and their replies."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tfgc._core.plan import Plan
from tfgc._errors import TfgcError
from tfgc._records.front import FrontRecord
from tfgc._records.predicted import Predicted, SegmentSummary

# A network's name or builder, and an image size; None: the network's default
Build: TypeAlias = tuple[str | Callable[..., Any], int | None]


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to train one network; `case`, `mode` and `batch_size` are as in `Measurement`."""

    network: str
    build: Build
    case: str
    mode: str
    batch_size: int
    strategy: str | Callable[..., Plan] | None = None  # how to plan; None for a plain case or if `plan` is given
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    plan: str | None = None  # as JSON
    input_shapes: Mapping[str, tuple[int | None, ...]] | None = None  # as in `tfgc.plan`
    steps: int = 5  # counted steps
    memory_limit: int | None = None  # bytes of data that the process may allocate; None: no limit
    optimizer: dict[str, Any] | None = None  # as `keras.optimizers.serialize` returns it; None: SGD
    example: Any = None  # as `_measure.examples.portable` returns it, for a model without a graph

    @property
    def name(self) -> str:
        """As `Measurement.name`."""
        return f"{self.case}-{self.mode}"


@dataclasses.dataclass(frozen=True)
class _CasesJob:
    cases: tuple[Case, ...]

    @property
    def network(self) -> str:
        """The network of its cases."""
        return self.cases[0].network


class TurnsJob(_CasesJob):
    """Time the cases of one network in one process: in each round every case takes one step."""


@dataclasses.dataclass(frozen=True)
class PredictionJob(_CasesJob):
    """Plan and predict the cases of one network at one batch size.

    `front` also asks for the Pareto front, on which budgets are marked.
    """

    front: bool = False
    marks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class MaxBatchJob:
    """Predict the largest batches of one network whose step fits in a budget."""

    network: str
    build: Build
    budget: int | str  # bytes that the allocator may report for the whole step, or `auto`
    strategy: str | Callable[..., Plan] | None = None  # without one any plan will do
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    input_shapes: Mapping[str, tuple[int | None, ...]] | None = None
    optimizer: Any = None  # serialized if it is a `keras.Optimizer`
    example: Any = None
    mode: str = "graph"  # as for `tfgc.plan`


Job: TypeAlias = Case | TurnsJob | PredictionJob | MaxBatchJob


@dataclasses.dataclass(frozen=True)
class CasePrediction:
    """What is known of a case before it runs."""

    plan: str | None = None  # its plan as JSON; None for plain training
    parts: tuple[SegmentSummary, ...] = ()  # that plan's segments
    predicted: Predicted | None = None  # None where its memory cannot be predicted
    error: str = ""  # why there is no plan; empty if nothing went wrong


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
    """The largest batch that is predicted to fit by one way of training."""

    batch_size: int  # 0 if not even one sample fits
    needed_bytes: int  # of the whole step, its data included, as `Prediction.needed_bytes`; of one sample if none fits
    node: str  # the node that runs at the peak
    plan: str | None = None  # the plan as JSON; None for plain training


@dataclasses.dataclass(frozen=True)
class MaxBatchPrediction:
    """What a `MaxBatchJob` found; bytes are as in `MaxBatch`."""

    budget_bytes: int
    fixed_bytes: int
    optimizer: Any  # the optimizer that was counted, serialized
    plain: LargestBatch  # without recomputation
    recomputed: LargestBatch | None  # by the strategy, or by any plan; None if the strategy is to recompute nothing


# Words of an error or of standard error that say that memory ran out, in Python, C++ and TensorFlow.
OUT_OF_MEMORY = (
    "MemoryError", "bad_alloc", "ResourceExhausted", "Cannot allocate memory", "failed to map segment",
    "can't start new thread", "exception:Status: 1,",  # which is how oneDNN's library counts errors
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a child process answers to a job: what it found (of a case the measured fields of a `Measurement`, of
    turns the seconds by case).

    In its place may stand a `TfgcError` that was raised, or another `failure` in one line, and whether memory ran out.
    """

    found: "dict[str, Any] | CasePredictions | MaxBatchPrediction | None" = None
    error: TfgcError | None = None
    failure: str = ""
    out_of_memory: bool = False
