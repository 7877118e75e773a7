"""The Pareto front of one model's plans, the least work for each peak, as data that can be saved and rendered."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class FrontPoint:
    """One plan of a front.

    Attributes:
        name: `least`, `plain`, another plan's name, or empty.
        peak_bytes: Most bytes at once in the whole step, in buffers: weights, their gradients, optimizer slots and
            activations.
        allocated_bytes: What TensorFlow's allocator should report for the whole step, in larger chunks.
        activation_bytes: The peak of activations alone.
        cut_off: The fraction of the plain step's peak above weights and slots that is saved.
        overhead: Work on top of the plain step's, as a fraction of it.
        segments: Number of segments.
        nested: Whether a replay is split again.
    """

    name: str
    peak_bytes: int
    allocated_bytes: int
    activation_bytes: int
    cut_off: float
    overhead: float
    segments: int
    nested: bool


@dataclasses.dataclass(frozen=True)
class BudgetChoice:
    """The plan for a budget.

    Attributes:
        budget: The budget as it was written.
        budget_bytes: The budget for the whole step, as the allocator reports it.
        point: The point of least overhead that fits; None if none does.
        least_bytes: In that case the least budget that a plan fits in.
    """

    budget: str
    budget_bytes: int
    point: FrontPoint | None
    least_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class FrontRecord:
    """The least work for each peak.

    Attributes:
        network, batch_size: What is trained.
        unit: What work is counted in, `s` or `flop`.
        fixed_bytes: Weights and optimizer slots, part of every peak.
        floor_bytes, floor_node: The least peak of any plan for the whole step, and the node that sets it.
        points: Points from the least peak to the plain step.
        others: Points of plans beside the front, with their names.
        choices: A `BudgetChoice` for each budget.
    """

    network: str
    batch_size: int
    unit: str
    fixed_bytes: int
    floor_bytes: int
    floor_node: str
    points: tuple[FrontPoint, ...]
    others: tuple[FrontPoint, ...] = ()
    choices: tuple[BudgetChoice, ...] = ()
