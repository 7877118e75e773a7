"""Judge the results of planned steps by those of plain ones: what `tfgc.verify` found, and how it reads."""

import collections
import dataclasses
import math

import numpy as np

# Of max(norm of the plain gradient, 1e-3 of the step's largest), by the coarsest dtype computed in.
_TOLERANCE = {"bfloat16": 5e-2, "float16": 5e-3, "float32": 1e-5, "float64": 1e-12}
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far one result of the planned step is from that of the plain one.

    Attributes:
        mode: "eager", "compiled", "graph" or "xla".
        step: Which step, from 0.
        kind: "loss", "added loss", "gradient", "state", "seed" or "metric".
        name: Of the variable or the loss.
        layer: The layer that it belongs to, or "".
        relative: Norm of the difference over the norm of the plain result.
        allowed: What `relative` may be.
        remark: What else there is to know, or "".
    """

    mode: str
    step: int
    kind: str
    name: str
    layer: str
    relative: float
    allowed: float
    remark: str = ""

    @property
    def passes(self):
        """Whether the difference is one of rounding."""
        return self.relative <= self.allowed

    def __str__(self):
        where = f" of layer {self.layer!r}" if self.layer else ""
        remark = f", {self.remark}" if self.remark else ""
        return (
            f"{self.relative:.2g} in the {self.kind} {self.name!r}{where}, {self.mode}, step {self.step} "
            f"(allowed: {self.allowed:.2g}{remark})"
        )


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The proof, or what speaks against it; true as a condition if everything is equal.

    Attributes:
        equal: Whether every result is that of the plain step.
        modes: The execution modes that were tried.
        steps: How many steps in a row.
        loss: What the loss was: as given, the compiled one, or what stood for it.
        compared: How many results of each kind were compared in each step.
        worst: The largest `Difference`; None if all results were equal to the bit.
        differences: Those beyond what is allowed, the worst first.
        excused: Those beyond the tolerance where plain TensorFlow differs as much from itself.
        unrepeatable: Layers that gave something else when run twice from one state.
        kept: Layers that cannot be run twice and are kept, each with the reason.
    """

    equal: bool
    modes: tuple
    steps: int
    loss: str
    compared: dict
    worst: Difference | None
    differences: tuple = ()
    excused: tuple = ()
    unrepeatable: tuple = ()
    kept: dict = dataclasses.field(default_factory=dict)

    def __bool__(self):
        return self.equal

    def __str__(self):
        counted = ", ".join(f"{count} x {kind}" for kind, count in self.compared.items())
        modes = ", ".join(self.modes)
        lines = [
            f"{'EQUAL' if self.equal else 'NOT EQUAL'}: {self.steps} steps in each of {modes}; in each {counted}",
            f"  loss: {self.loss}",
            f"  worst relative difference: {self.worst or 'none, all results are equal to the bit'}",
        ]
        lines += [f"  differs: {difference}" for difference in self.differences[:10]]
        if len(self.differences) > 10:
            lines.append(f"  and {len(self.differences) - 10} more")
        lines += [f"  excused: {difference}" for difference in self.excused[:3]]
        lines += [f"  not deterministic: {name!r} gives something else when run twice" for name in self.unrepeatable]
        lines += [f"  kept: {name!r} cannot be run twice: {reason}" for name, reason in self.kept.items()]
        return "\n".join(lines)

    def to_dict(self):
        """The verdict as plain data, for JSON; infinite differences become strings."""
        return dataclasses.asdict(self, dict_factory=lambda pairs: {k: _finite(v) for k, v in pairs})


class StepComparison:
    """Compares results step by step.

    Args:
        dtype: The coarsest dtype that the model computes in.
        uses: How many times a tensor or weight is used at most: its gradient is the sum of so many terms.
    """

    def __init__(self, dtype, uses):
        self._tolerance = _TOLERANCE[dtype]
        self._rounding = min(4 * uses * EPSILON[dtype], self._tolerance)
        self._all = []
        self._excused = []
        self._compared = {}

    def compare(self, mode, plain, planned, others=tuple):
        """Judge the steps of a mode.

        Each step is a mapping from (kind, name) to an array, None, or a pair of indices and values. `others()`
        yields the plain steps again, each time rounded otherwise: how much plain TensorFlow itself moves.
        """
        found = self._differences(mode, plain, planned)
        if not all(d.passes for d in found):
            spreads = collections.Counter()
            for steps in others():
                for d in self._differences(mode, plain, steps):
                    key = (d.step, d.kind, d.name)
                    spreads[key] = max(spreads[key], d.relative)
            found = [self._judged(d, spreads.get((d.step, d.kind, d.name), 0.0)) for d in found]
        self._all += found

    def _judged(self, difference, spread):
        if difference.passes or not difference.relative <= 2 * spread:
            return difference
        remark = f"as plain TensorFlow differs by {spread:.2g} from itself"
        excused = dataclasses.replace(difference, allowed=2 * spread, remark=remark)
        self._excused.append(excused)
        return excused

    def _differences(self, mode, plain, planned):
        found = []
        for number, (expected, given) in enumerate(zip(plain, planned)):
            gradients = [
                _norm(value) for (kind, _), value in expected.items() if kind == "gradient" and value is not None
            ]
            least = 1e-3 * max(gradients, default=0.0)
            self._compared = dict(collections.Counter(kind for kind, _ in {**expected, **given}))
            for (kind, name), value in expected.items():
                allowed = self._allowed(mode, kind, value)
                relative, remark = _relative(value, given.get((kind, name)), least if kind == "gradient" else 0.0)
                found.append(Difference(mode, number, kind, name, _layer(kind, name), relative, allowed, remark))
            for kind, name in given.keys() - expected.keys():
                remark = "only the planned step has it"
                found.append(Difference(mode, number, kind, name, _layer(kind, name), math.inf, 0.0, remark))
        return found

    def _allowed(self, mode, kind, value):
        if kind == "seed" or (isinstance(value, np.ndarray) and value.dtype.kind in "iub"):
            return 0.0
        if mode == "eager":
            return self._rounding if kind == "gradient" else 0.0
        return self._tolerance

    def verdict(self, modes, steps, loss, unrepeatable, kept):
        """All that was judged so far."""
        failed = sorted((d for d in self._all if not d.passes), key=lambda d: -d.relative)
        moved = [d for d in self._all if d.relative]
        worst = failed[0] if failed else max(moved, key=lambda d: d.relative, default=None)
        return Verdict(
            not failed,
            modes,
            steps,
            loss,
            self._compared,
            worst,
            tuple(failed),
            tuple(self._excused),
            unrepeatable,
            kept,
        )


def _relative(expected, given, least):
    """The relative norm of a difference, and what is odd about it."""
    if expected is None or given is None:
        return (0.0, "") if expected is given else (math.inf, "None in one of them")
    if isinstance(expected, tuple) != isinstance(given, tuple):
        return math.inf, "sparse in one of them"
    if isinstance(expected, tuple):
        if not np.array_equal(expected[0], given[0]):
            return math.inf, "sparse, of other rows"
        expected, given = expected[1], given[1]
    if expected.shape != given.shape or expected.dtype != given.dtype:
        return math.inf, f"{expected.dtype}{expected.shape} and {given.dtype}{given.shape}"
    if np.array_equal(expected, given):
        return 0.0, ""
    a, b = (x.astype("complex128" if x.dtype.kind == "c" else "float64") for x in (expected, given))
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return math.inf, "not finite in one of them"
    a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0)
    error, scale = np.linalg.norm(a - b), max(np.linalg.norm(a), least)
    return (float(error / scale) if scale else math.inf), ""


def _norm(value):
    value = value[1] if isinstance(value, tuple) else value
    value = np.asarray(value, "complex128" if np.asarray(value).dtype.kind == "c" else "float64")
    return float(np.linalg.norm(np.where(np.isfinite(value), value, 0)))


def _layer(kind, name):
    return name.rpartition("/")[0] if kind in ("gradient", "state", "seed") else ""


def _finite(value):
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
