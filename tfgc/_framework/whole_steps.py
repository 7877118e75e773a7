"""Threads that trace a step which is planned as a whole: enabled models run their own code there."""

import contextlib
import threading
from collections.abc import Iterator

from tfgc._framework import isolated_traces

_here = threading.local()


@contextlib.contextmanager
def traced_here() -> Iterator[None]:
    """Let this thread trace such a step in here."""
    before, _here.are_traced = is_here(), True
    try:
        yield
    finally:
        _here.are_traced = before


def is_here() -> bool:
    """Whether this thread traces such a step."""
    return getattr(_here, "are_traced", False)


def is_part() -> bool:
    """Whether what this thread runs is part of a step that something else plans."""
    return is_here() or isolated_traces.is_watched()
