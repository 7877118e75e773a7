"""The peaks of a step from several states of the allocator, counted by hand in MiB; `a|b` is a region cut into chunks.

Regions are of 2, 4, 8, ... MiB, and a free chunk is split where it is at least twice what is asked for.
"""

import itertools

import pytest

from tfgc._simulate import chunk_peaks
from tfgc._simulate.bfc_allocator import Allocator
from tfgc._simulate.requests import Requests

MIB = 2**20


def requests(*sizes, there=()):
    """A step in which buffers of these sizes come one after the other, and all go at the end; in MiB."""
    found = Requests(int(size * MIB) for size in there)
    for number in [found.allocate(int(size * MIB)) for size in sizes]:
        found.free(number)
    return found


def peaks(step):
    return [peak / MIB for peak in chunk_peaks.from_states(step)]


def test_a_buffer_takes_a_chunk_of_almost_twice_its_size_from_some_states():
    # Where nothing else is: 4.5|3.5 of 8, from the second step on too. Of the other states some leave a free chunk that
    # is larger, and not twice as large.
    (row,) = chunk_peaks.in_a_row(requests(4.5), 1)
    assert row == (0, 8 * MIB)
    (row,) = chunk_peaks.in_a_row(requests(3.5), 1)
    assert row == (0, 4 * MIB)
    found = peaks(requests(3.5))
    assert found[:2] == [4, 4]
    assert all(3.5 <= peak < 7 for peak in found)
    assert len(set(found)) > 2


def test_two_steps_are_played_in_each_state():
    # Weights of 3 move out of 4, whole, into 5 of 8, whole, or back: 1 or 2 beyond the request, and a buffer of 3
    # beside them takes what they left, or will take.
    step = Requests([3 * MIB])
    gradient = step.allocate(3 * MIB)
    step.move(0)
    step.free(gradient)
    in_a_row = list(chunk_peaks.in_a_row(step, 4))
    assert in_a_row[:2] == in_a_row[2:]
    assert [sum(one) for one in in_a_row[:2]] == list(itertools.islice(chunk_peaks.from_states(step), 2))


def test_what_weights_take_beyond_the_request_counts():
    # Weights of 3 have 4, whole; a buffer of 1 has 1|7 of 8.
    assert peaks(requests(1, there=[3]))[0] == 2
    # The batch does not count, nor what its chunk has more.
    batch = Requests(beside=[3 * MIB])
    batch.free(batch.allocate(MIB))
    assert peaks(batch)[0] == 1
    # Weights of 255 KiB are of another pool: nothing beyond, and nothing less.
    small = [255 / 1024] * 100
    assert peaks(requests(1, there=small)) == peaks(requests(1))


def test_states_are_the_same_each_time_and_made_when_asked_for(monkeypatch):
    step = requests(1.5, 3.5, 2.5, 7)
    assert peaks(step) == peaks(step)
    made = []
    monkeypatch.setattr(chunk_peaks, "Allocator", lambda: made.append(Allocator()) or made[-1])
    found = chunk_peaks.from_states(step)
    assert not made
    next(found)
    assert len(made) == 1


@pytest.mark.parametrize("others", [[], [9], [3, 5]])
def test_a_step_leaves_the_allocator_as_it_was(others):
    allocator = Allocator()
    for size in others:
        allocator.allocate(size * MIB)
    played = chunk_peaks._Played(requests(1.5, 3.5, there=[2, 5]), allocator)
    before = allocator.in_use
    assert played.peak() >= 5 * MIB
    assert allocator.in_use == before
