import threading
import warnings

import pytest

from tfgc._core.ignored_warnings import ignored_warnings


def test_threads_that_overlap_leave_the_filters_as_they_were():
    before = list(warnings.filters)
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    def first():
        with ignored_warnings():
            first_is_in.set()
            second_is_in.wait(10)
        first_is_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(10)
    with ignored_warnings():
        second_is_in.set()
        assert first_is_out.wait(10)
        warnings.warn("it is an error in tests", UserWarning, stacklevel=1)  # still off: this block is not over
    thread.join()
    assert warnings.filters == before


def test_an_error_inside_puts_the_filters_back():
    before = list(warnings.filters)
    with pytest.raises(ValueError, match="inside"), ignored_warnings():
        raise ValueError("inside")
    assert warnings.filters == before
