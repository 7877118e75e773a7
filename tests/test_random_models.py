"""Models at random train by plans as they do plainly; see `random_models`."""

import collections

import hypothesis
import pytest
import random_models
from hypothesis import HealthCheck, Phase, given, settings

# How many models.
FAST, SLOW = 6, 2000


def tried(seed, count, most, modes):
    """Try so many models; how many there were, and how many of them Keras itself cannot train."""
    counts = collections.Counter()

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(random_models.scripts(modes, most))
    def one(script):
        counts["tried"] += 1
        try:
            random_models.run(script)
        except random_models.PlainError:
            counts["plain"] += 1

    one()
    assert counts["plain"] <= max(2, count // 5)
    return counts


def chunks():
    for seed in range(FAST // 3):
        yield seed, 3, 3, random_models.MODES
    for seed in range(100, 100 + SLOW // 50):
        modes = ("xla",) if seed % 10 == 0 else random_models.MODES
        yield pytest.param(seed, 50, 9, modes, marks=pytest.mark.slow)


@pytest.mark.filterwarnings(
    "ignore::UserWarning",
    "ignore::tfgc.NothingSavedWarning",
    "error::tfgc.NotReplayableWarning",
    # Keras's UnitNormalization in half precision, in any graph.
    "ignore:overflow encountered in cast:RuntimeWarning",
)
@pytest.mark.parametrize(("seed", "count", "most", "modes"), chunks())
def test_plans_change_nothing_in_random_models(seed, count, most, modes):
    assert tried(seed, count, most, modes)["tried"] >= count
