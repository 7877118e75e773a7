"""What a child process is told: one case to measure, a network's cases to foresee, or a largest batch to search."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to train one network.

    Attributes:
        network: Its name.
        build: Pair of a network's name or builder and its image size (None: its own).
        case, mode, batch_size, input_shapes: As in `Measurement` and `tfgc.plan`.
        strategy, options: How to plan; None for a plain case or a plan that is there.
        share: Plan with the least work at this part of the plain step's peak above weights and slots, or, where none
            reaches it, the least peak; in place of a strategy. Its option is `nested`.
        plan: The plan as JSON.
        steps: Counted steps.
        memory_limit: Bytes of data that the process may allocate; None: no limit.
        peer: Another way to recompute, as `_measure.peers` and `_measure.torch_peer` name them, in place of a plan.
        checked: Whether the first update is compared with that of plain steps, for `Measurement.wrong`.
        optimizer: A `keras.Optimizer` as `keras.optimizers.serialize` tells it; None: SGD.
    """

    network: str
    build: object
    case: str
    mode: str
    batch_size: int
    strategy: object = None
    options: dict = dataclasses.field(default_factory=dict)
    share: float | None = None
    plan: str | None = None
    input_shapes: dict | None = None
    steps: int = 5
    memory_limit: int | None = None
    peer: str | None = None
    checked: bool = False
    optimizer: dict | None = None

    @property
    def name(self):
        """As `Measurement.name`."""
        return f"{self.case}-{self.mode}"

    @property
    def asked(self):
        """How it is to be planned, in a line; empty for plain cases and peers.

        >>> Case("alexnet", ("alexnet", None), "least", "graph", 8, share=0.25, options={"nested": False}).asked
        'share=0.25, nested=False'
        """
        how = {"strategy": self.strategy, "share": self.share, **self.options}
        if callable(self.strategy):
            how["strategy"] = getattr(self.strategy, "__name__", "function")
        return ", ".join(f"{key}={value}" for key, value in how.items() if value is not None)


@dataclasses.dataclass(frozen=True)
class Task:
    """Plan and predict the cases of one network at one batch size.

    Attributes:
        cases: A tuple of `Case`, all of one network and batch.
        measure: Count seconds, timed on this device, in place of flops.
        front: Whether to tell of the least work for each peak, too.
        marks: Budgets to mark on that front.
    """

    cases: tuple
    measure: bool = False
    front: bool = False
    marks: tuple = ()


@dataclasses.dataclass(frozen=True)
class CasePredictions:
    """What is known of a task's cases before any is run.

    Attributes:
        plans: The plan of each case as JSON, by `Case.case`.
        errors: Why a case has none, likewise.
        mismatch: Why a given plan does not fit the model, likewise.
        predicted: A `Predicted` by `Case.name`.
        parts: Tuples of `SegmentSummary` by `Case.case`.
        front: A `Front`, or None.
    """

    plans: dict
    errors: dict
    mismatch: dict
    predicted: dict
    parts: dict
    front: object = None


NO_PREDICTIONS = CasePredictions({}, {}, {}, {}, {})


@dataclasses.dataclass(frozen=True)
class Search:
    """Predict the largest batches of one network whose step fits in a budget.

    Attributes:
        network, build, strategy, options, input_shapes: As in `Case`; without a strategy any plan will do.
        budget: Bytes, or `auto`.
        optimizer: As for `tfgc.plan`, serialized if it is a `keras.Optimizer`.
    """

    network: str
    build: object
    budget: object
    strategy: object = None
    options: dict = dataclasses.field(default_factory=dict)
    input_shapes: dict | None = None
    optimizer: object = None


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch that is predicted to fit by one way of training.

    Attributes:
        batch_size: 0 if not even one sample fits.
        needed_bytes: What a step of that batch needs, its data included; of one sample where none fits.
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
    """What a `Search` found.

    Attributes:
        budget_bytes: The budget.
        fixed_bytes: Weights and optimizer slots, in every step.
        optimizer: The optimizer that was counted, serialized.
        plain: A `LargestBatch` without recomputation.
        recomputed: One by the strategy, or by any plan; None if the strategy is to recompute nothing.
        refused: A `TfgcError`, in place of all else.
    """

    budget_bytes: int = 0
    fixed_bytes: int = 0
    optimizer: dict | None = None
    plain: LargestBatch | None = None
    recomputed: LargestBatch | None = None
    refused: Exception | None = None
