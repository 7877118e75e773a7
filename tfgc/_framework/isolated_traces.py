"""A trace that leaves nothing behind: in a thread of its own.

Tapes, default graphs, Keras's call context and its scopes all belong to a thread. A trace made while a training step is
itself being traced would be recorded by that step's tape and would see its `training`; in another thread it sees
neither. What else Keras keeps for each thread (names, policies, the global seed generator) is handed over.
"""

import concurrent.futures
import contextlib
import ctypes
import functools
import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras

from tfgc._framework import keras_state
from tfgc._framework.diverted_calls import DivertedCalls

Result = TypeVar("Result")
_POLL = 0.1  # Seconds: a thread that waits for a lock cannot be interrupted.

# The class that defines it for all optimizers.
_BASE = next(kind for kind in keras.Optimizer.__mro__ if "apply" in vars(kind))
_UPDATES = DivertedCalls(_BASE, "apply")
_updates_of = functools.cache(functools.partial(DivertedCalls, name="apply"))  # a subclass
# What traces a model holds this until its layers are as they were, for other threads would see what it changes in them.
one_at_a_time = threading.Lock()


def in_own_thread(
    function: Callable[[], Result], patience: float = math.inf, on_wait: Callable[[], Any] = lambda: None
) -> Result:
    """Call a function in a thread of its own, outside of all tapes, graphs and calls, and return what it returns.

    What ends this thread meanwhile, such as a KeyboardInterrupt, is raised in the new one, too, which then unwinds:
    else a step that Ctrl-C ended would go on being planned, and put methods back that had been replaced since. Code
    that is not Python's runs to its end first. If all is not done after `patience` seconds, `on_wait` is called.
    """
    handed = keras_state.of_thread()
    outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()
    made: dict[str, Any] = {}
    # Not `Thread.join`: interrupted, it takes a thread that runs for one that has ended (in Python 3.11).
    done = threading.Event()

    def run() -> None:
        collects = gc.isenabled()
        gc.disable()  # what is made is kept, or goes by itself: Python's collector would walk over all of it in vain
        try:
            keras_state.add_to_thread(handed)
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)
            made.update(keras_state.of_thread())
        finally:
            if collects:
                gc.enable()
            done.set()

    thread = threading.Thread(target=run, name="tfgc trace")
    try:
        thread.start()
        if not _wait(done, patience):
            on_wait()
            _wait(done)
    except BaseException as error:
        if thread.ident is None:  # An interrupt may come while it starts.
            time.sleep(_POLL)
        if thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(type(error)))
            _wait(done)
        raise
    thread.join()
    keras_state.add_to_thread(made)
    return outcome.result()


def _wait(done: threading.Event, seconds: float = math.inf) -> bool:
    """Wait for so long at most; whether it is done."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not done.wait(min(left, _POLL)):
        pass
    return done.is_set()


@contextlib.contextmanager
def updates_by(update: Callable) -> Iterator[None]:
    """Let `update(optimizer, grads, trainable_variables)` run in place of the updates of this thread."""
    with one_at_a_time, contextlib.ExitStack() as stack:
        stack.enter_context(_UPDATES.to(update))
        for kind in subclasses(_BASE):
            if "apply" in vars(kind):
                stack.enter_context(_updates_of(kind).to(update))
        yield


def is_watched() -> bool:
    """Whether this thread runs in `updates_by`, for whose end any other trace would wait."""
    return _UPDATES.are_diverted


def subclasses(kind: type) -> Iterator[type]:
    """The classes below one, at any depth."""
    for other in kind.__subclasses__():
        yield other
        yield from subclasses(other)
