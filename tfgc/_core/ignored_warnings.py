"""Warnings turned off for a while, in as many threads as want them off.

`warnings.catch_warnings` puts back the filters that it found. Of two threads whose blocks overlap, the last one out
puts back those of the other: nothing warns any more. Here the first one in turns warnings off, and the last one out
puts the filters back.
"""

import contextlib
import threading
import warnings
from collections.abc import Iterator

_lock = threading.Lock()
_blocks = 0
_filters = contextlib.ExitStack()


@contextlib.contextmanager
def ignored_warnings() -> Iterator[None]:
    """Turn all warnings off, those of other threads too."""
    global _blocks
    with _lock:
        if not _blocks:
            _filters.enter_context(warnings.catch_warnings(action="ignore"))
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks:
                _filters.close()
