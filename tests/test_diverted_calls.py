"""Calls of functions that a thread diverts for a while."""

import types

from tfgc._framework.diverted_calls import DivertedCalls


def test_a_wrapper_that_is_taken_off_late_makes_no_endless_call():
    """As mock.patch does around code in which another thread's trace ends: it puts back what it found."""
    owner = types.SimpleNamespace(run=lambda: "as it is")
    calls = DivertedCalls(owner, "run")
    with calls.to(lambda: "diverted"):
        found = owner.run
        assert owner.run() == "diverted"
    owner.run = found
    with calls.to(lambda: "diverted"):
        assert calls.original() == "as it is"
    assert owner.run() == "as it is"


def test_a_wrapper_that_stays_is_called():
    owner = types.SimpleNamespace(run=lambda: "as it is")
    calls = DivertedCalls(owner, "run")
    owner.run = lambda: "wrapped"
    with calls.to(lambda: calls.original() + ", noted"):
        assert owner.run() == "wrapped, noted"
    assert owner.run() == "wrapped"
