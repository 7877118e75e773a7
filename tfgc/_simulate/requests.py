"""What a step asks an allocator for, in order: noted once, then looked at as often as wanted."""

from collections.abc import Iterable


class Requests:
    """Stands for an allocator, and notes which buffers are there before a step, and which come and go in it.

    `beside` them are others whose bytes do not count, such as those of the batch.
    """

    def __init__(self, there: Iterable[int] = (), beside: Iterable[int] = ()) -> None:
        self.there, self.beside = list(there), list(beside)  # bytes; of the buffers 0, 1, ... and of nameless ones
        # Buffers with their bytes where they come, with 0 where they go, and negative where they move.
        self.log: list[tuple[int, int]] = []
        self._count = len(self.there)

    def allocate(self, size: int) -> int | None:
        """Note a buffer of `size` bytes; return its number, or None if it takes no memory."""
        if not size:
            return None
        self.log.append((self._count, size))
        self._count += 1
        return self._count - 1

    def free(self, number: int | None) -> None:
        """Note that a buffer is read no more."""
        if number is not None:
            self.log.append((number, 0))

    def move(self, number: int) -> None:
        """Note that a buffer that was `there` is written again, elsewhere."""
        self.log.append((number, -self.there[number]))
