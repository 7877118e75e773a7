"""How far results of two steps are apart, as plain numbers: arrays, and pairs of rows and values for sparse ones."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# The share of the largest result of a kind below which one is next to nothing.
NEXT_TO_NOTHING = 1e-3
LOST = "zero in the second step alone"


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
    note = LOST if not b.any() and scale > least > 0 else ""
    return (float(error / scale) if scale else math.inf if error else 0.0), note


def _summed(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of the values of each row: those of several uses of a weight come in any order."""
    numbers = _numbers(values)
    different, places = np.unique(rows, return_inverse=True)
    sums = np.zeros((len(different), *numbers.shape[1:]), numbers.dtype)
    np.add.at(sums, places, numbers)
    return sums.astype(values.dtype)


def blank(results: Mapping[tuple[str, str], Any], kind: str) -> dict[str, bool]:
    """Whether the results of a kind, by name, hold no number that is finite."""
    return {
        name: not np.isfinite(numbers).any()
        for (k, name), value in results.items()
        if k == kind and value is not None and (numbers := _numbers(value)).size
    }


def least(results: Mapping[tuple[str, str], Any], kind: str) -> float:
    """What differences of results that are next to nothing are compared with."""
    return NEXT_TO_NOTHING * max(
        (norm(value) for (k, _), value in results.items() if k == kind and value is not None), default=0
    )


def norm(value: Any) -> float:
    """That of the finite numbers of a result."""
    numbers = _numbers(value)
    return float(np.linalg.norm(np.where(np.isfinite(numbers), numbers, 0)))


def _numbers(value: Any) -> np.ndarray:
    value = np.asarray(value[1] if isinstance(value, tuple) else value)
    return value.astype("complex128" if value.dtype.kind == "c" else "float64")
