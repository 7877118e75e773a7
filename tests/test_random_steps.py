"""Models at random train in rewritten steps with the bits of plain ones; see `random_steps`."""

import collections
import gc

import pytest
import random_steps
from random_steps import PlainError

# How many models in `fit`, and in each other kind of step.
FIT, OTHERS, AT_ONCE = 300, 100, 20
FAST = (
    ("penalty", 1, 1, 3), ("persistent", 10, 1, 3), ("accumulated", 0, 1, 3), ("branch", 1, 1, 3),
    ("fit", 118, 1, 6),  # a shared Conv2D, whose bias oneDNN sums otherwise where its filter's gradient waits
)  # fmt: skip


def chunks():
    yield from (pytest.param(*row, id=f"{row[0]}-{row[1]}-few") for row in FAST)
    for kind, count in {"fit": FIT, **dict.fromkeys(random_steps.STEPS, OTHERS)}.items():
        for first in range(100, 100 + count, AT_ONCE):
            yield pytest.param(kind, first, AT_ONCE, 8, marks=pytest.mark.slow)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.usefixtures("optimizer_off")
@pytest.mark.parametrize(("kind", "first", "count", "most"), chunks())
def test_rewritten_steps_of_random_models_have_the_bits_of_plain_ones(kind, first, count, most):
    counts = collections.Counter()
    for seed in range(first, first + count):
        try:
            counts["copied"] += random_steps.check(kind, seed, most)
        except PlainError:
            counts["plain"] += 1
        gc.collect()
    assert counts["plain"] <= count // 5
    assert 2 * counts["copied"] >= count
