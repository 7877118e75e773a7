"""Running a function in a thread that ends where an interrupt ends the waiting one.

Without that, a step that Ctrl-C ended went on being planned, and put methods back that had been replaced since.
"""

import ctypes
import math
import threading
import time
from collections.abc import Callable
from typing import Any

_POLL = 0.1  # Seconds: a thread that waits for a lock cannot be interrupted.


def run_to_end(function: Callable[[], Any], patience: float, on_wait: Callable[[], Any]) -> None:
    """Call a function in a new thread and wait until it is done.

    The function raises nothing. What ends this thread meanwhile, such as a KeyboardInterrupt, is raised in the new one,
    too, which then unwinds. Code that is not Python's runs to its end first. If the function is not done after
    `patience` seconds, `on_wait` is called.
    """
    # Not `Thread.join`: interrupted, it takes a thread that runs for one that has ended (in Python 3.11).
    done = threading.Event()

    def run() -> None:
        try:
            function()
        finally:
            done.set()

    thread = threading.Thread(target=run, name="tfgc trace")
    thread.start()
    try:
        if not _wait(done, patience):
            on_wait()
            _wait(done)
    except BaseException as error:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(type(error)))
        _wait(done)
        raise
    thread.join()


def _wait(done: threading.Event, seconds: float = math.inf) -> bool:
    """Wait for so long at most; whether it is done."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not done.wait(min(left, _POLL)):
        pass
    return done.is_set()
