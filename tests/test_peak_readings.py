"""Readings of the allocator see nothing of what other tests left behind."""

import concurrent.futures
import os
import warnings

import memory
import pytest
import tensorflow as tf


def everything_held():
    return memory.info("current"), memory.info("peak"), os.getpid()


def peak_of_a_product(size):
    x = tf.ones((size, size))
    return memory.peak(tf.function(lambda x: tf.reduce_sum(x @ x)), x)


def test_a_fresh_process_holds_nothing_and_is_used_once():
    left_behind = tf.ones((1000, 1000))
    first, second = memory.alone(everything_held), memory.alone(everything_held)
    assert first[:2] == second[:2] == (0, 0)
    assert len({first[2], second[2], os.getpid()}) == 3
    del left_behind


def test_a_reading_is_the_same_every_time():
    """The product, in a chunk of a size that the allocator did not have to round, and its sum."""
    found = {memory.alone(peak_of_a_product, 512) for _ in range(3)}
    assert len(found) == 1
    assert 512 * 512 * 4 <= found.pop() < 512 * 512 * 4 + 2048


def test_readings_are_refused_in_the_process_of_the_tests():
    with pytest.raises(AssertionError, match=r"memory\.alone"):
        memory.info("peak")


def warning():
    warnings.warn("something is off", stacklevel=1)


def test_warnings_are_errors_there_too():
    with pytest.raises(UserWarning, match="something is off"):
        memory.alone(warning)


def test_the_end_of_a_process_is_an_error():
    with pytest.raises(concurrent.futures.BrokenExecutor, match="terminated abruptly"):
        memory.alone(os.abort)
