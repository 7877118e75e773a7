"""The jobs of child processes: measure a case, predict a network's cases, or its largest batch."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from tfgc._core.plan import Plan

# A network's name or builder, and an image size; None: the network's default
Build: TypeAlias = tuple[str | Callable[..., Any], int | None]


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to train one network.

    Attributes:
        network: Its name.
        build: Pair of a network's name or builder and an image size (None: the network's default).
        case, mode, batch_size, input_shapes: As in `Measurement` and `tfgc.plan`.
        strategy, options: How to plan; None for a plain case or if `plan` is given.
        target_ratio: Take the strategy's plan of least work at this fraction of the plain step's peak above weights and
            slots or, if none reaches it, the plan of least peak. Default of the strategy: `budget`.
        plan: The plan as JSON.
        steps: Counted steps.
        memory_limit: Bytes of data that the process may allocate; None: no limit.
        peer: Instead of a plan: another way to recompute, named as in `_measure.peers` and `_measure.torch_peer`.
        compare_first_update: Whether the first update is compared with that of plain steps, for `Measurement.wrong`.
        optimizer: A `keras.Optimizer` as `keras.optimizers.serialize` returns it; None: SGD.
        example: A batch as `_measure.examples.portable` returns it, for a model without a graph; else None.
        target: The GPU that the step is compiled for instead of being run; empty: it is run.
    """

    network: str
    build: Build
    case: str
    mode: str
    batch_size: int
    strategy: str | Callable[..., Plan] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    target_ratio: float | None = None
    plan: str | None = None
    input_shapes: dict[str, tuple[int | None, ...]] | None = None
    steps: int = 5
    memory_limit: int | None = None
    peer: str | None = None
    compare_first_update: bool = False
    optimizer: dict[str, Any] | None = None
    example: Any = None
    target: str = ""

    @property
    def name(self) -> str:
        """As `Measurement.name`."""
        return f"{self.case}-{self.mode}"

    @property
    def planned_as(self) -> str:
        """How it is to be planned, in one line; empty for plain cases and peers.

        >>> case = Case("alexnet", ("alexnet", None), "least", "graph", 8, target_ratio=0.25, options={"nested": False})
        >>> case.planned_as
        'share=0.25, nested=False'
        """
        how = {"strategy": self.strategy, "share": self.target_ratio, **self.options}
        if callable(self.strategy):
            how["strategy"] = getattr(self.strategy, "__name__", "function")
        return ", ".join(f"{key}={value}" for key, value in how.items() if value is not None)


@dataclasses.dataclass(frozen=True)
class PredictionJob:
    """Plan and predict the cases of one network at one batch size.

    `measure` counts seconds, timed on this device, instead of flops; `front` also asks for the Pareto front, on which
    budgets are marked.
    """

    cases: tuple[Case, ...]
    measure: bool = False
    front: bool = False
    marks: tuple[str, ...] = ()

    @property
    def network(self) -> str:
        """The network of its cases."""
        return self.cases[0].network


@dataclasses.dataclass(frozen=True)
class MaxBatchJob:
    """Predict the largest batches of one network whose step fits in a budget.

    Attributes:
        network, build, strategy, options, input_shapes, example: As in `Case`; without a strategy any plan will do.
        budget: Bytes that the allocator may report for the whole step, or `auto`.
        optimizer, mode: As for `tfgc.plan`; an optimizer is serialized if it is a `keras.Optimizer`.
    """

    network: str
    build: Build
    budget: int | str
    strategy: str | Callable[..., Plan] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    input_shapes: dict[str, tuple[int | None, ...]] | None = None
    optimizer: Any = None
    example: Any = None
    mode: str = "graph"
