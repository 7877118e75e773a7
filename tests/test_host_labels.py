"""Labels of plans with a host: those that are left are those that a comparison in pairs leaves."""

import numpy as np
import pytest

from tfgc.strategies._host_labels import Labels, Pruning

COUNT = 200


def labels(seed):
    """Different labels of small whole numbers, numbered by their sources."""
    figures = np.unique(np.random.default_rng(seed).integers(0, 7, (COUNT, 4)), axis=0).astype(float)
    return Labels(*figures.T, np.arange(len(figures)))


def left(labels, counted):
    """The figures that count of the labels that none beats in all of them."""
    figures = np.unique(np.column_stack([getattr(labels, name) for name in counted]), axis=0)
    beaten = np.all(figures[None] <= figures[:, None], axis=2).sum(axis=1) > 1  # by itself, and another one
    return set(map(tuple, figures[~beaten]))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("host_counts", "counted"),
    [(False, ("in_flight", "device", "work")), (True, ("in_flight", "device", "host", "work"))],
    ids=["without a budget for the host", "with one"],
)
def test_what_is_left_is_what_a_comparison_in_pairs_leaves(host_counts, counted, seed):
    made = labels(seed)
    found = Pruning(host_counts).unbeaten(made)
    assert set(zip(*(getattr(found, name) for name in counted))) == left(made, counted)
    assert len(found.work) == len(left(made, counted)) < len(made.work) / 2


@pytest.mark.parametrize("host_counts", [False, True])
def test_every_label_that_is_left_says_where_it_comes_from(host_counts):
    made = labels(0)
    for row, figures in enumerate(zip(*Pruning(host_counts).unbeaten(made))):
        assert figures == tuple(column[int(figures[-1])] for column in made), row


@pytest.mark.parametrize("host_counts", [False, True])
def test_very_many_labels_are_thinned_out_and_it_says_so(host_counts):
    count = 3000  # none of which beats another one
    nothing, rising = np.zeros(count), np.arange(count, dtype=float)
    pruning = Pruning(host_counts)
    found = pruning.unbeaten(Labels(nothing, rising, nothing, rising[::-1], np.arange(count)))
    assert pruning.thinned
    assert 10 < len(found.work) <= 256
    assert found.work.min() == 0


def test_thinning_keeps_the_least_work_of_every_slot_of_bytes():
    slots, count = 24, 5000
    device, host, work = np.random.default_rng(0).integers(0, 100, (3, count)).astype(float)
    found = Pruning(host_counts=True).unbeaten(Labels(np.zeros(count), device, host, work, np.arange(count)))

    def slot(on_device, on_host):
        return tuple(int(np.ceil(slots * bytes_ / 99)) for bytes_ in (on_device, on_host))

    least = {}
    for key, each in zip(map(slot, device, host), work):
        least[key] = min(each, least.get(key, np.inf))
    kept = {slot(*figures): each for *figures, each in zip(found.device, found.host, found.work)}
    assert kept == {key: least[key] for key in kept}
    assert min(kept.values()) == work.min()
    for key, each in least.items():  # dropped only where no more bytes take no more work
        assert any(other[0] <= key[0] and other[1] <= key[1] and kept[other] <= each for other in kept), key
