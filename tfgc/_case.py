"""What a child process is told: one case to measure, or a network's cases to foresee."""

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
            reaches it, the least peak; in place of a strategy.
        plan: The plan as JSON.
        steps: Counted steps.
        memory_limit: Bytes of data that the process may allocate; None: no limit.
        peer: Another way to recompute, as `_peers` and `_torch_peer` name them, in place of a plan.
        checked: Whether the first update is compared with that of plain steps, for `Measurement.wrong`.
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

    @property
    def name(self):
        """As `Measurement.name`."""
        return f"{self.case}-{self.mode}"


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
class Foresight:
    """What is known of a task's cases before any is run.

    Attributes:
        plans: The plan of each case as JSON, by `Case.case`.
        errors: Why a case has none, likewise.
        mismatch: Why a given plan does not fit the model, likewise.
        predicted: A `Predicted` by `Case.name`.
        parts: Tuples of `Part` by `Case.case`.
        front: A `Front`, or None.
    """

    plans: dict
    errors: dict
    mismatch: dict
    predicted: dict
    parts: dict
    front: object = None


NOTHING = Foresight({}, {}, {}, {}, {})
