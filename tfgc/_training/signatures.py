"""What calls of a model have in common that run by one plan."""

import dataclasses
from typing import TypeAlias

from tfgc._core.modes import Mode

Sizes: TypeAlias = tuple[tuple[tuple[int | None, ...], str], ...]


@dataclasses.dataclass(frozen=True)
class Signature:
    """What calls that run by one plan have in common.

    Attributes:
        sizes: For each input its shape without the batch, and its dtype.
        mode: How the step runs.
        policy: The name of the model's dtype policy.
        in_step: Whether the model's own `train_step` makes them.
    """

    sizes: Sizes
    mode: Mode
    policy: str
    in_step: bool = False

    def covers(self, other: "Signature") -> bool:
        """Whether a step of the other one needs no more than one of this."""
        alike = dataclasses.replace(self, sizes=()) == dataclasses.replace(other, sizes=())
        return (alike and len(self.sizes) == len(other.sizes)) and all(
            dtype == its_dtype
            and len(shape) == len(its_shape)
            and all(a is not None and b is not None and b <= a for a, b in zip(shape, its_shape))
            for (shape, dtype), (its_shape, its_dtype) in zip(self.sizes, other.sizes)
        )
