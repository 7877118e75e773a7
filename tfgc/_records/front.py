"""The Pareto front of one model's plans, the least work for each peak, as data that can be saved and rendered."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class FrontPoint:
    """One plan of a front."""

    name: str  # `least`, `plain`, another plan's name, or empty
    peak_bytes: int  # of the whole step, in buffers: weights, their gradients, optimizer slots and activations
    allocated_bytes: int  # what TensorFlow's allocator should report for it, in larger chunks
    activation_bytes: int  # the peak of activations alone
    cut_off: float  # the fraction of the plain step's peak above weights and slots that is saved
    overhead: float  # work on top of the plain step's, as a fraction of it
    segments: int
    nested: bool  # whether a replay is split again
    needed_bytes: int | None = None  # what a budget is compared with; None in files of older versions


@dataclasses.dataclass(frozen=True)
class BudgetChoice:
    """The plan for a budget."""

    budget: str  # as it was written
    budget_bytes: int  # for the whole step, as the allocator reports it
    point: FrontPoint | None  # the point of least overhead that fits; None if none does
    least_bytes: int | None = None  # in that case the least budget that a plan fits in


@dataclasses.dataclass(frozen=True)
class FrontRecord:
    """The least work for each peak."""

    network: str
    batch_size: int
    unit: str  # what work is counted in, `s` or `flop`
    fixed_bytes: int  # weights and optimizer slots, part of every peak
    floor_bytes: int  # the least peak of the whole step that a plan of the front may have; others may go below
    floor_node: str  # which sets it
    points: tuple[FrontPoint, ...]  # from the least peak to the plain step
    others: tuple[FrontPoint, ...] = ()  # plans beside the front
    choices: tuple[BudgetChoice, ...] = ()  # one for each budget
