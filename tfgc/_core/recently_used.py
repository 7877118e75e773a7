"""A cache of limited size, for what can be made again."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """At most so many entries: a new one takes the place of the one that was used longest ago. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        # Reentrant, as garbage may be collected in here, and what that runs may look something up.
        self._lock = threading.RLock()

    def get(self, key: Key) -> Value | None:
        """The value of a key, which is used by this; None if there is none."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def __setitem__(self, key: Key, value: Value) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            gone = [self._entries.popitem(last=False) for _ in range(len(self._entries) - self._most)]
        del gone  # Freed outside of the lock.

    def keep(self, is_wanted: Callable[[Value], bool]) -> None:
        """Forget all values but those that are wanted."""
        with self._lock:
            gone = [self._entries.pop(key) for key, value in self.copy().items() if not is_wanted(value)]
        del gone

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def copy(self) -> dict[Key, Value]:
        """The entries as a dictionary, the one that was used longest ago first."""
        with self._lock:
            return dict(self._entries)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
