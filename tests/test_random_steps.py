"""Models at random train in rewritten steps with the bits of plain ones; see `random_steps`."""

import collections
import gc

import pytest
import random_steps
from random_steps import PlainError

# How many models in `fit`, and in each other kind of step.
FIT, OTHERS, AT_ONCE = 300, 100, 20
FAST = (("fit", 10, 4), ("penalty", 1, 1), ("persistent", 10, 1), ("accumulated", 0, 1), ("branch", 0, 1))


def chunks():
    yield from (pytest.param(kind, first, count, 3, id=f"{kind}-few") for kind, first, count in FAST)
    for kind, count in {"fit": FIT, **dict.fromkeys(random_steps.STEPS, OTHERS)}.items():
        for first in range(100, 100 + count, AT_ONCE):
            yield pytest.param(kind, first, AT_ONCE, 8, marks=pytest.mark.slow)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize(("kind", "first", "count", "most"), chunks())
def test_rewritten_steps_of_random_models_have_the_bits_of_plain_ones(kind, first, count, most):
    counts = collections.Counter()
    with random_steps.optimizer_off():
        for seed in range(first, first + count):
            try:
                counts["copied"] += random_steps.check(kind, seed, most)
            except PlainError:
                counts["plain"] += 1
            gc.collect()
    assert counts["plain"] <= count // 5
    assert 2 * counts["copied"] >= count
