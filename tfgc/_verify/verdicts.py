"""Compare the results of planned and plain steps: the `Verdict` of `tfgc.verify`, and how it is printed."""

import collections
import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfgc._core.shown import Shown, limited
from tfgc._verify import differences

# Of max(norm of the plain gradient, the next share of the step's largest), by the coarsest dtype computed in.
_TOLERANCE = {"bfloat16": 5e-2, "float16": 5e-3, "float32": 1e-5, "float64": 1e-12}
_NOTHING = "no finite number in the plain step, so nothing was compared"
_OFF = "graph, its optimizer off"
_FLOAT64 = _TOLERANCE["float64"]
# Up to here rounding was seen to grow: to 1.5 % in ResNets with new weights. What is wrong may differ by as little.
_MAYBE_ROUNDED = 0.03
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


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
        if self.differences and all(d.relative < _MAYBE_ROUNDED and d.allowed > _FLOAT64 for d in self.differences):
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


# For each step the results by kind and name: an array, None, or a pair of indices and values.
Steps = Sequence[Mapping[tuple[str, str], Any]]


class StepComparison:
    """Compares results step by step.

    `dtype` is the coarsest that the model computes in. The gradient of a tensor or weight is a sum of as many terms as
    the most `uses` of one.
    """

    def __init__(self, dtype: str, uses: int, updates: bool = False) -> None:
        self._tolerance = _TOLERANCE[dtype]
        self._epsilon = EPSILON[dtype]
        self._all: list[Difference] = []
        self._tolerated: list[Difference] = []
        self._compared: dict[str, int] = {}
        self._blank: set[str] = set()
        self._is_exact: bool | None = None
        self._unlike: list[str] = []
        self._unrepeatable: dict[str, None] = {}

    def prove(self, plain: Steps, again: Steps, planned: Steps, unlike_copies: Callable[[], list[str]]) -> None:
        """Compare planned steps to the bit with two runs of plain ones, with the graph optimizer off.

        `unlike_copies` is asked where they differ: which operations gave other bits when they ran again.
        """
        if any(d.relative for d in self._differences(_OFF, plain, again)):
            return
        found = [d for d in self._differences(_OFF, plain, planned) if d.relative]
        self._is_exact = not found
        self._unlike = unlike_copies() if found else []
        self._all += [dataclasses.replace(d, allowed=0.0) for d in found]

    def repeats(self, mode: str, plain: Steps, again: Steps) -> bool:
        """Whether two runs of plain steps from the same states agree; those of graphs may round differently."""
        found = [d for d in self._differences(mode, plain, again) if not d.passes and d.relative < math.inf]
        self._unrepeatable |= dict.fromkeys(f"the {d.kind} {d.name!r}" for d in found)
        return not found

    def compare(self, mode: str, baseline: Steps, planned: Steps, again: Callable[[], Iterable[Steps]] = tuple) -> None:
        """Compare plain with planned steps; `again` runs the plain ones again, each time with other roundings."""
        found = self._differences(mode, baseline, planned)
        failed = {d.result for d in found if not d.passes}
        if failed:
            spreads: dict[tuple[int, str, str], float] = collections.defaultdict(float)
            # None in one mode and zeros in another says nothing of how far other values may be off.
            unlike: dict[tuple[int, str, str], float] = {}
            judged = found
            for steps in again():
                apart = {d.result: d.relative for d in self._differences(mode, steps, planned, failed)}
                for d in self._differences(mode, baseline, steps, failed):
                    if d.relative < math.inf:
                        spreads[d.result] = max(spreads[d.result], d.relative)
                    else:
                        unlike[d.result] = min(apart.get(d.result, math.inf), unlike.get(d.result, math.inf))
                judged = [self._with_spread(d, spreads[d.result], unlike.get(d.result, math.inf)) for d in found]
                if all(d.passes for d in judged):  # More runs would only allow more.
                    break
            found = judged
            self._tolerated += [d for d in found if d.passes and d.result in failed]
        self._all += found

    def _with_spread(self, difference: Difference, spread: float, from_unlike: float) -> Difference:
        """The difference, tolerated if plain TensorFlow differs from itself by at least half as much."""
        if difference.passes or difference.note == differences.LOST:  # Rounding moves gradients, it does not lose them.
            return difference
        if difference.relative <= 2 * spread:
            allowed, note = 2 * spread, f"as plain TensorFlow differs by {spread:.2g} from itself"
        # Or if a plain result of another kind, such as None for zeros, is no further off than the first one may be.
        elif from_unlike <= difference.allowed:
            allowed, note = math.inf, "as another run of plain TensorFlow has it"
        else:
            return difference
        return dataclasses.replace(difference, allowed=allowed, note=note)

    def _differences(
        self, mode: str, baseline: Steps, planned: Steps, results: Container[tuple[int, str, str]] | None = None
    ) -> list[Difference]:
        """The difference of each result, or of each of those that are named."""
        found = []
        for number, (expected, given) in enumerate(zip(baseline, planned, strict=True)):
            least = {"gradient": differences.least(expected, "gradient")}
            least["weight"] = least["state"] = differences.least(expected, "weight")
            self._compared = dict(collections.Counter(kind for kind, _ in {**expected, **given}))
            blank = {kind: differences.blank(expected, kind) for kind in ("loss", "gradient")}
            self._blank |= {name for name, is_blank in blank["gradient"].items() if is_blank}
            for (kind, name), value in expected.items():
                if results is not None and (number, kind, name) not in results:
                    continue
                allowed = self._allowed(mode, kind, value, least.get(kind, 0.0) / differences.NEXT_TO_NOTHING)
                relative, note = differences.relative_difference(value, given.get((kind, name)), least.get(kind, 0.0))
                if name in blank.get(kind, ()) and all(blank[kind].values()):
                    relative, note = math.inf, _NOTHING
                found.append(Difference(mode, number, kind, name, _layer(kind, name), relative, allowed, note))
            for kind, name in given.keys() - expected.keys():
                note = "only the planned step has it"
                found.append(Difference(mode, number, kind, name, _layer(kind, name), math.inf, 0.0, note))
        return found

    def _allowed(self, mode: str, kind: str, value: Any, largest: float) -> float:
        if kind == "seed" or (isinstance(value, np.ndarray) and value.dtype.kind in "iub"):
            return 0.0
        return self._tolerance

    def verdict(self, modes: tuple[str, ...], steps: int, loss: str, note: str = "") -> Verdict:
        """The verdict on all that was compared so far."""
        failed = sorted((d for d in self._all if not d.passes), key=lambda d: -d.relative)
        moved = [d for d in self._all if d.relative]
        if self._blank and not failed:
            names = ", ".join(map(repr, sorted(self._blank)))
            note = "; ".join([*filter(None, [note]), f"{_NOTHING}, in the gradients {names}"])
        worst = failed[0] if failed else max(moved, key=lambda d: d.relative, default=None)
        compared, beyond, tolerated = self._compared, tuple(failed), tuple(self._tolerated)
        return Verdict(
            not failed,
            modes,
            steps,
            loss,
            compared,
            worst,
            beyond,
            tolerated,
            tuple(self._unrepeatable),
            note,
            self._is_exact,
            tuple(self._unlike),
        )


def _layer(kind: str, name: str) -> str:
    return name.rpartition("/")[0] if kind in ("gradient", "weight", "state", "seed") else ""


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
