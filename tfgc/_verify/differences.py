"""How far results of two steps are apart, as plain numbers: arrays, and pairs of rows and values for sparse ones."""

import collections
import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfgc._verify.verdicts import TOLERANCE, Difference, Verdict

# The share of the largest result of a kind below which one is next to nothing.
_NEXT_TO_NOTHING = 1e-3
_LOST = "zero in the second step alone"
_NOTHING = "no finite number in the plain step, so nothing was compared"
_OFF = "graph, its optimizer off"
# The results of a step by kind and name: an array, None, or a pair of indices and values.
Results = Mapping[tuple[str, str], Any]
Steps = Sequence[Results]


class StepComparison:
    """Compares results step by step; `dtype` is the coarsest that the model computes in."""

    def __init__(self, dtype: str) -> None:
        self._tolerance = TOLERANCE[dtype]
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
        found = judged = self._differences(mode, baseline, planned)
        failed = {d.result for d in found if not d.passes}
        spreads: dict[tuple[int, str, str], float] = collections.defaultdict(float)
        # None in one mode and zeros in another says nothing of how far other values may be off.
        unlike: dict[tuple[int, str, str], float] = collections.defaultdict(lambda: math.inf)
        for steps in again() if failed else ():
            apart = {d.result: d.relative for d in self._differences(mode, steps, planned, failed)}
            for d in self._differences(mode, baseline, steps, failed):
                if d.relative < math.inf:
                    spreads[d.result] = max(spreads[d.result], d.relative)
                else:
                    unlike[d.result] = min(apart.get(d.result, math.inf), unlike[d.result])
            judged = [_judged(d, spreads[d.result], unlike[d.result]) for d in found]
            if all(d.passes for d in judged):  # More runs would only allow more.
                break
        self._tolerated += [d for d in judged if d.passes and d.result in failed]
        self._all += judged

    def _differences(
        self, mode: str, baseline: Steps, planned: Steps, results: Container[tuple[int, str, str]] | None = None
    ) -> list[Difference]:
        """The difference of each result, or of each of those that are named."""
        found = []
        for number, (expected, given) in enumerate(zip(baseline, planned, strict=True)):
            least = {"gradient": _least(expected, "gradient")}
            least["weight"] = least["state"] = _least(expected, "weight")
            self._compared = dict(collections.Counter(kind for kind, _ in {**expected, **given}))
            blank = {kind: _blank(expected, kind) for kind in ("loss", "gradient")}
            self._blank |= {name for name, is_blank in blank["gradient"].items() if is_blank}

            def add(kind: str, name: str, relative: float, allowed: float, note: str, number: int = number) -> None:
                layer = name.rpartition("/")[0] if kind in ("gradient", "weight", "state", "seed") else ""
                found.append(Difference(mode, number, kind, name, layer, relative, allowed, note))

            for (kind, name), value in expected.items():
                if results is None or (number, kind, name) in results:
                    is_exact = kind == "seed" or (isinstance(value, np.ndarray) and value.dtype.kind in "iub")
                    relative, note = relative_difference(value, given.get((kind, name)), least.get(kind, 0.0))
                    if name in blank.get(kind, ()) and all(blank[kind].values()):
                        relative, note = math.inf, _NOTHING
                    add(kind, name, relative, 0.0 if is_exact else self._tolerance, note)
            for kind, name in given.keys() - expected.keys():
                add(kind, name, math.inf, 0.0, "only the planned step has it")
        return found

    def verdict(self, modes: tuple[str, ...], steps: int, loss: str, note: str = "") -> Verdict:
        """The verdict on all that was compared so far."""
        failed = sorted((d for d in self._all if not d.passes), key=lambda d: -d.relative)
        moved = [d for d in self._all if d.relative]
        if self._blank and not failed:
            names = ", ".join(map(repr, sorted(self._blank)))
            note = "; ".join([*filter(None, [note]), f"{_NOTHING}, in the gradients {names}"])
        worst = failed[0] if failed else max(moved, key=lambda d: d.relative, default=None)
        return Verdict(
            not failed, modes, steps, loss, self._compared, worst, tuple(failed), tuple(self._tolerated),
            tuple(self._unrepeatable), note, self._is_exact, tuple(self._unlike),
        )  # fmt: skip


def _judged(difference: Difference, spread: float, from_unlike: float) -> Difference:
    """The difference, tolerated if plain TensorFlow differs from itself by at least half as much."""
    if difference.passes or difference.note == _LOST:  # Rounding moves gradients, it does not lose them.
        return difference
    if difference.relative <= 2 * spread:
        note = f"as plain TensorFlow differs by {spread:.2g} from itself"
        return dataclasses.replace(difference, allowed=2 * spread, note=note)
    # Or if a plain result of another kind, such as None for zeros, is no further off than the first one may be.
    if from_unlike <= difference.allowed:
        return dataclasses.replace(difference, allowed=math.inf, note="as another run of plain TensorFlow has it")
    return difference


def relative_difference(expected: Any, given: Any, least: float) -> tuple[float, str]:
    """The relative norm of a difference, and a note where it is infinite."""
    if expected is None or given is None:
        return (0.0, "") if expected is given else (math.inf, "None in one of them")
    if isinstance(expected, tuple) != isinstance(given, tuple):
        return math.inf, "sparse in one of them"
    if isinstance(expected, tuple):
        if not np.array_equal(np.sort(expected[0]), np.sort(given[0])):
            return math.inf, "sparse, of other rows"
        are_in_order = np.array_equal(expected[0], given[0])
        expected, given = (pair[1] if are_in_order else _summed(*pair) for pair in (expected, given))
    if expected.shape != given.shape or expected.dtype != given.dtype:
        return math.inf, f"{expected.dtype}{expected.shape} and {given.dtype}{given.shape}"
    if np.array_equal(expected, given):
        return 0.0, ""
    a, b = (x.astype("complex128" if x.dtype.kind == "c" else "float64") for x in (expected, given))
    finite = np.isfinite(a)
    if not np.array_equal(np.where(finite, 0, a), np.where(np.isfinite(b), 0, b), equal_nan=True):
        return math.inf, "not finite in one of them, or not in the same way"
    a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    error, scale = np.linalg.norm(a - b), max(np.linalg.norm(a), least)
    note = _LOST if not b.any() and scale > least > 0 else ""
    return (float(error / scale) if scale else math.inf if error else 0.0), note


def _summed(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of the values of each row: those of several uses of a weight come in any order."""
    numbers = _numbers(values)
    different, places = np.unique(rows, return_inverse=True)
    sums = np.zeros((len(different), *numbers.shape[1:]), numbers.dtype)
    np.add.at(sums, places, numbers)
    return sums.astype(values.dtype)


def _blank(results: Results, kind: str) -> dict[str, bool]:
    """Whether the results of a kind, by name, hold no number that is finite."""
    return {name: not np.isfinite(numbers).any() for name, numbers in _of_kind(results, kind) if numbers.size}


def _least(results: Results, kind: str) -> float:
    """What differences of results that are next to nothing are compared with: by the norms of their finite numbers."""
    finite = (np.where(np.isfinite(numbers), numbers, 0) for _, numbers in _of_kind(results, kind))
    return _NEXT_TO_NOTHING * max((float(np.linalg.norm(numbers)) for numbers in finite), default=0)


def _of_kind(results: Results, kind: str) -> Iterator[tuple[str, np.ndarray]]:
    return ((name, _numbers(value)) for (k, name), value in results.items() if k == kind and value is not None)


def _numbers(value: Any) -> np.ndarray:
    value = np.asarray(value[1] if isinstance(value, tuple) else value)
    return value.astype("complex128" if value.dtype.kind == "c" else "float64")
