"""The model of TensorFlow's best-fit allocator: sequences counted by hand, and the real one beside it.

Counts are in KiB where names end in K. Regions begin at 2 MiB (2048 K) and double; chunks are multiples of 256 bytes;
what is smaller than 256 KiB comes from another pool.
"""

import itertools
import random

import memory
import numpy as np
import pytest
import tensorflow as tf

from tfgc._simulate.bfc_allocator import SMALL, Allocator

K = 1024


def free(allocator):
    """Sizes of the free chunks, ascending, in KiB."""
    return [size / K for size, _ in allocator._free]


def take(allocator, *counts):
    return [allocator.allocate(int(count * K)) for count in counts]


def used(allocator):
    return allocator.in_use / K


def test_sizes_are_rounded_up_to_256_bytes():
    a = Allocator()
    a.allocate(300 * K + 1)
    assert a.in_use == 300 * K + 256
    a.allocate(300 * K + 256)
    assert a.in_use == 2 * (300 * K + 256)


def test_what_is_small_comes_from_another_pool():
    a = Allocator()
    assert a.allocate(SMALL - 1) is None
    a.free(None)
    assert a.in_use == 0
    assert a.allocate(SMALL) == 0
    assert used(a) == 256


def test_a_chunk_is_split_where_it_is_at_least_twice_the_size():
    a = Allocator()
    take(a, 1024)  # of a region of 2048: exactly twice, so 1024 are left
    assert (used(a), free(a)) == (1024, [1024])
    take(a, 513)  # 1024 is less than twice 513: all of it is handed out
    assert (used(a), free(a)) == (2048, [])


def test_a_chunk_of_up_to_twice_the_size_is_handed_out_whole():
    a = Allocator()
    (address,) = take(a, 1025)
    assert used(a) == 2048
    a.free(address)
    assert (used(a), free(a)) == (0, [2048])


def test_no_more_than_128_mib_are_wasted():
    a = Allocator()
    # 200 MiB need a region of 256 MiB: 56 MiB above, less than twice and less than 128 MiB more: whole.
    (first,) = take(a, 200 * K)
    assert used(a) == 256 * K
    a.free(first)
    b = Allocator()
    # 300 MiB need 512 MiB: less than twice, but 212 MiB more: split.
    take(b, 300 * K)
    assert (used(b), free(b)) == (300 * K, [212 * K])


def test_regions_double():
    a = Allocator()
    take(a, 2048)  # fills the first region of 2 MiB; the next one is of 4 MiB
    take(a, 256)
    assert free(a) == [4096 - 256]
    take(a, 3840)  # fills the second, the next one is of 8 MiB
    take(a, 256)
    assert free(a) == [8192 - 256]


def test_a_region_that_had_to_grow_to_fit_does_not_double_the_next_one():
    a = Allocator()
    take(a, 5 * K)  # 2, 4, 8 MiB: the region is of 8 MiB, of which less than twice 5 MiB: whole
    assert (used(a), free(a)) == (8 * K, [])
    take(a, 256)  # no increase above: again 8 MiB, and 16 after that
    assert free(a) == [8 * K - 256]
    take(a, 8 * K - 256)
    take(a, 256)
    assert free(a) == [16 * K - 256]


def test_the_best_fit_is_the_smallest_chunk_that_is_large_enough():
    a = Allocator()
    take(a, 2048)  # the first region, out of the way
    pieces = take(a, 700, 300, 600, 300, 500, 300)
    assert free(a) == [4096 - 2700]
    for piece in pieces[::2]:
        a.free(piece)
    assert free(a) == [500, 600, 700, 1396]
    (found,) = take(a, 550)  # 600 is the least that is large enough, and less than twice
    assert found == pieces[2]
    assert free(a) == [500, 700, 1396]


def test_equal_chunks_are_taken_from_the_lowest_address():
    a = Allocator()
    take(a, 2048)
    pieces = take(a, 400, 300, 400, 300)
    a.free(pieces[2])
    a.free(pieces[0])
    assert take(a, 400, 400) == [pieces[0], pieces[2]]


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_neighbours_that_are_free_become_one_chunk(order):
    a = Allocator()
    take(a, 2048)
    pieces = take(a, 300, 400, 500, 256)  # 2640 of the region of 4096 are left
    for i in order:
        a.free(pieces[i])
    assert free(a) == [1200, 2640]
    assert take(a, 1200) == [pieces[0]]
    a.free(pieces[0])
    a.free(pieces[3])  # and with the rest behind it
    assert free(a) == [4096]
    assert used(a) == 2048


def test_chunks_of_two_regions_never_become_one():
    a = Allocator()
    first, second = take(a, 2048, 4096)
    a.free(first)
    a.free(second)
    assert free(a) == [2048, 4096]
    take(a, 5000)  # so that a third region of 8 MiB is needed
    assert used(a) == 8192


def test_the_first_chunk_of_a_split_keeps_its_address():
    a = Allocator()
    assert take(a, 256, 256, 256) == [0, 256 * K, 512 * K]
    a.free(256 * K)
    assert take(a, 1000) == [768 * K]  # of the 1280 behind: less than twice, all of them
    assert used(a) == 512 + 1280


# Each line: what is taken (name, KiB) or given back, and the KiB in use after it.
SEQUENCE = [
    ("a", 1024, 1024),  # the region of 2048: 1024 | 1024 free
    ("b", 513, 2048),  # less than twice: whole
    ("c", 700, 2748),  # a region of 4096: 700 | 3396
    ("d", 700, 3448),  # 700 | 700 | 2696
    ("c", None, 2748),
    ("e", 400, 3448),  # the 700 fit best, whole
    ("e", None, 2748),
    ("e", 350, 3098),  # twice 350: 350 | 350 | 700 | 2696
    ("f", 350, 3448),
    ("d", None, 2748),  # 700 and 2696 become 3396
    ("g", 2000, 6144),  # less than twice: whole
    ("h", 9 * K, 6144 + 16 * K),  # regions of 8 are too small; 16 MiB are less than twice 9: whole
    ("h", None, 6144),
    ("i", 3 * K, 6144 + 3 * K),
    ("small", 255, 6144 + 3 * K),
    ("edge", 256, 6400 + 3 * K),
    ("i", None, 6400),
    ("a", None, 5376),
    ("b", None, 4352),
    ("small", None, 4352),
    ("edge", None, 4096),
    ("g", None, 700),
    ("e", None, 350),
    ("f", None, 0),
]


def play(steps, take, give, in_use):
    """Play steps with functions that take, give back and tell; the bytes in use after each."""
    held, told = {}, []
    for name, count, *_ in steps:
        if count is None:
            give(held.pop(name))
        else:
            held[name] = take(int(count * K))
        told.append(in_use())
    return told


def random_steps(seed, number=60):
    """Steps as in `SEQUENCE`, without what they come to; what is left is given back."""
    draws, held, steps = random.Random(seed), [], []
    for name in range(number):
        if held and draws.random() < 0.4:
            steps.append((held.pop(draws.randrange(len(held))), None))
        else:
            held.append(name)
            steps.append((name, draws.choice([draws.randrange(1, 300), draws.randrange(256, 5 * K)])))
    return [*steps, *((name, None) for name in held)]


def test_a_sequence_counted_by_hand():
    a = Allocator()
    assert play(SEQUENCE, a.allocate, a.free, lambda: a.in_use) == [expected * K for *_, expected in SEQUENCE]


def real():
    """Bytes in use after each step of the sequence above, and of random ones after it, by TensorFlow's allocator."""

    def bytes_of(count):
        return [tf.fill([count], np.int8(1))]

    def current():
        return memory.info("current")

    return [play(steps, bytes_of, list.clear, current) for steps in [SEQUENCE, *map(random_steps, range(3))]]


@pytest.mark.gate
def test_tensorflow_counts_the_same():
    a, found = Allocator(), memory.alone(real)
    for steps, told in zip([SEQUENCE, *map(random_steps, range(3))], found, strict=True):
        assert told == play(steps, a.allocate, a.free, lambda: a.in_use)
    assert found[0] == [expected * K for *_, expected in SEQUENCE]
    assert a.in_use == 0
