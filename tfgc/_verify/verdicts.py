"""The `Verdict` of `tfgc.verify`, and how it is printed."""

import dataclasses
import math
from typing import Any

from tfgc._core.shown import Shown, limited

# Up to here rounding was seen to grow: to 1.5 % in ResNets with new weights. What is wrong may differ by as little.
_MAYBE_ROUNDED = 0.03
TOLERANCE = {"bfloat16": 5e-2, "float16": 5e-3, "float32": 1e-5, "float64": 1e-12}


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far one result of the planned step is from that of the plain one.

    Attributes:
        mode: "eager", "compiled", "graph" or "xla".
        step: Which step, from 0.
        kind: "loss", "added loss", "gradient", "weight", "state", "seed" or "metric".
        name: Of the variable or the loss.
        layer: The layer that it belongs to, or "".
        relative: Norm of the difference over the norm of the plain result.
        allowed: What `relative` may be.
        note: Why the difference is allowed or cannot be computed, or "".
    """

    mode: str
    step: int
    kind: str
    name: str
    layer: str
    relative: float
    allowed: float
    note: str = ""

    @property
    def result(self) -> tuple[int, str, str]:
        """Which result it is of: its step, kind and name."""
        return self.step, self.kind, self.name

    @property
    def passes(self) -> bool:
        """Whether the difference is one of rounding."""
        return self.relative <= self.allowed

    def __str__(self) -> str:
        where = f" of layer {self.layer!r}" if self.layer else ""
        note = f", {self.note}" if self.note else ""
        return (
            f"{self.relative:.2g} in the {self.kind} {self.name!r}{where}, {self.mode}, step {self.step} "
            f"(allowed: {self.allowed:.2g}{note})"
        )


@dataclasses.dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """The result of `tfgc.verify`; true as a condition if everything is equal.

    Attributes:
        equal: Whether every result is that of the plain step.
        modes: The execution modes that were tried.
        steps: How many steps in a row.
        loss: The loss that was used: the given one, the compiled one, or a replacement.
        compared: How many results of each kind were compared in each step.
        worst: The largest `Difference`; None if all results were equal to the bit.
        differences: Those beyond what is allowed, the worst first.
        tolerated: Those beyond the tolerance where plain TensorFlow differs as much between two runs.
        unrepeatable: Results that differ between two plain steps from the same state.
        note: What could not be compared, or "".
        is_exact: Whether, with TensorFlow's graph optimizer off, each result of the step in a graph has plain's bits;
            None where that was not tried, or where two plain steps differ.
        unlike_copies: Where it is False, the operations that gave other bits when they ran again, the first one first.
    """

    equal: bool
    modes: tuple[str, ...]
    steps: int
    loss: str
    compared: dict[str, int]
    worst: Difference | None
    differences: tuple[Difference, ...] = ()
    tolerated: tuple[Difference, ...] = ()
    unrepeatable: tuple[str, ...] = ()
    note: str = ""
    is_exact: bool | None = None
    unlike_copies: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        counted = ", ".join(f"{count} x {kind}" for kind, count in self.compared.items())
        modes = ", ".join(self.modes)
        lines = [
            f"{'EQUAL' if self.equal else 'NOT EQUAL'}: {self.steps} steps in each of {modes}; in each {counted}",
            f"  loss: {self.loss}",
            f"  worst relative difference: {self.worst or 'none, all results are equal to the bit'}",
        ]
        if self.is_exact is not None:
            lines.append(f"  graph optimizer off: {'all' if self.is_exact else 'not all'} results are equal to the bit")
        lines += [f"  other bits when it runs again: {name!r}" for name in self.unlike_copies[:3]]
        lines += [f"  differs: {difference}" for difference in self.differences[:10]]
        if len(self.differences) > 10:
            lines.append(f"  and {len(self.differences) - 10} more")
        least = TOLERANCE["float64"]
        if self.differences and all(d.relative < _MAYBE_ROUNDED and d.allowed > least for d in self.differences):
            lines.append(
                "  rounding can grow to this size in a deep network. Float64 tells it from an error: call "
                'keras.config.set_floatx("float64") before the model is made; steps agree to 1e-12 there'
            )
        lines += [f"  tolerated: {difference}" for difference in self.tolerated[:3]]
        if len(self.tolerated) > 3:
            lines.append(f"  and {len(self.tolerated) - 3} more are tolerated")
        lines += [f"  not deterministic: {name}, in plain steps from one state" for name in self.unrepeatable[:3]]
        notes = [f"  note: {self.note}"] if self.note else []
        return "\n".join([*limited(lines, 20 - len(notes)), *notes])

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data, for JSON; infinite differences become strings."""
        return dataclasses.asdict(self, dict_factory=lambda pairs: {k: _finite(v) for k, v in pairs})


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
