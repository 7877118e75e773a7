"""The least work for each peak of one model, as data that can be saved and rendered."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class FrontPoint:
    """One plan of a front.

    Attributes:
        name: `least`, `plain`, another plan's name, or empty.
        peak_bytes: Most bytes at once in the whole step: weights, their gradients,
            optimizer slots and activations.
        allocated_bytes: What TensorFlow's allocator should report for it, in larger chunks.
        activation_bytes: The peak of activations by themselves.
        cut_off: Part of the plain step's peak above weights and slots that is saved.
        overhead: Part of the plain step's work that comes on top.
        segments: Their number.
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
    """What a budget buys: the point of least overhead that fits, or None and the least budget that buys one."""

    budget: str
    budget_bytes: int
    point: FrontPoint | None
    least_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Front:
    """The least work for each peak.

    Attributes:
        network, batch_size: What is trained.
        unit: What work is counted in, `s` or `flop`.
        fixed_bytes: Weights and optimizer slots, in every peak.
        floor_bytes, floor_node: Least peak of any plan, and the node that sets it.
        points: From the least peak to the plain step.
        others: Plans beside the front, by name.
        choices: A `BudgetChoice` for each budget.
    """

    network: str
    batch_size: int
    unit: str
    fixed_bytes: int
    floor_bytes: int
    floor_node: str
    points: tuple
    others: tuple = ()
    choices: tuple = ()
