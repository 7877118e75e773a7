"""What is another for a while: calls that a thread diverts, while other threads' go where they did, and attributes."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tfgc._framework.versions import attribute


class DivertedCalls:
    """The calls of `owner.name`, a method or a function of a module; `original` is what runs them otherwise."""

    def __init__(self, owner: Any, name: str) -> None:
        self.original = attribute(owner, name)
        self._owner = owner
        self._name = name
        # The attribute is replaced as long as any thread diverts calls.
        self._lock = threading.Lock()
        self._diverting = 0
        self._here = threading.local()

        def call(*args: Any, **kwargs: Any) -> Any:
            handler = getattr(self._here, "handler", None) or self.original
            return handler(*args, **kwargs)

        self._call = call

    @property
    def are_diverted(self) -> bool:
        """Whether this thread diverts them."""
        return getattr(self._here, "handler", None) is not None

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
            found = attribute(self._owner, self._name)
            # Others may have wrapped it since. An interrupt, or a wrapper taken off late, may have left ours there.
            if not self._diverting and found is not self._call:
                self.original = found
            self._diverting += change
            setattr(self._owner, self._name, self._call if self._diverting else self.original)


@contextlib.contextmanager
def replaced(thing: Any, name: str, instead: Any) -> Iterator[None]:
    """Let a method or attribute of an object be another for a while."""
    attributes = vars(thing)
    is_own, own = name in attributes, attributes.get(name)
    attributes[name] = instead
    try:
        yield
    finally:
        del attributes[name]
        if is_own:
            attributes[name] = own
