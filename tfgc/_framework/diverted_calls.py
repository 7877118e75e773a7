"""Calls of a function of TensorFlow's that a thread diverts for a while; those of other threads go where they did."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


class DivertedCalls:
    """The calls of `owner.name`, a method or a function of a module; `original` runs one as TensorFlow would.

    The attribute is replaced as long as any thread diverts calls.
    """

    def __init__(self, owner: Any, name: str, original: Callable) -> None:
        self.original = original
        self._owner = owner
        self._name = name
        self._lock = threading.Lock()
        self._diverting = 0
        self._here = threading.local()

        def call(*args: Any, **kwargs: Any) -> Any:
            handler = getattr(self._here, "handler", None) or original
            return handler(*args, **kwargs)

        self._call = call

    @contextlib.contextmanager
    def to(self, handler: Callable) -> Iterator[None]:
        """Hand this thread's calls in here to `handler`, with the same arguments."""
        outer = getattr(self._here, "handler", None)
        self._here.handler = handler
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)
            self._here.handler = outer

    def _count(self, change: int) -> None:
        with self._lock:
            self._diverting += change
            setattr(self._owner, self._name, self._call if self._diverting else self.original)
