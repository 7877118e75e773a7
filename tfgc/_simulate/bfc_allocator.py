"""TensorFlow's best-fit allocator with coalescing (BFC), as far as bytes in use go.

The allocator reports more than was requested: a free chunk of less than twice the size, and less than 128 MiB larger,
is handed out whole. Regions of the device grow by doubling. After TensorFlow's `bfc_allocator.cc` (release 2.21).

On a CPU buffers below 256 KiB come from another pool, which the reported peak leaves out.
"""

import bisect
from typing import TypeAlias

_ROUND = 256
_FIRST_REGION = 2 << 20
_MOST_WASTE = 128 << 20
SMALL = 256 << 10
# Of a chunk; None for what another pool serves.
Address: TypeAlias = int | None


class Allocator:
    """Chunks of regions, in use or free; `in_use` are the bytes of those in use, as the allocator reports them."""

    def __init__(self) -> None:
        self.in_use = 0
        self._region = _FIRST_REGION
        self._free: list[tuple[int, int]] = []  # (size, address)
        self._size: dict[int, int] = {}  # of each chunk, by address
        # Neighbours in the same region
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._top = 0

    def allocate(self, count: int) -> Address:
        """Hand out a chunk for `count` bytes and return its address."""
        if count < SMALL:
            return None
        count = -(-count // _ROUND) * _ROUND
        at = bisect.bisect_left(self._free, (count, -1))
        if at == len(self._free):
            self._extend(count)
            at = bisect.bisect_left(self._free, (count, -1))
        size, address = self._free.pop(at)
        if size >= 2 * count or size - count >= _MOST_WASTE:
            self._split(address, count)
        self.in_use += self._size[address]
        return address

    def free(self, address: Address) -> None:
        """Take a chunk back and merge it with free neighbours."""
        if address is None:
            return
        self.in_use -= self._size[address]
        for neighbour in (self._after.get(address), self._before.get(address)):
            if neighbour is not None and self._is_free(neighbour):
                self._free.remove((self._size[neighbour], neighbour))
                address = self._merge(*sorted((address, neighbour)))
        bisect.insort(self._free, (self._size[address], address))

    def size(self, address: int) -> int:
        """The bytes of a chunk."""
        return self._size[address]

    def _is_free(self, address: int) -> bool:
        at = bisect.bisect_left(self._free, (self._size[address], address))
        return at < len(self._free) and self._free[at] == (self._size[address], address)

    def _extend(self, count: int) -> None:
        grown = count > self._region
        while count > self._region:
            self._region *= 2
        self._size[self._top] = self._region
        bisect.insort(self._free, (self._region, self._top))
        # Regions do not touch, so that their chunks never merge.
        self._top += self._region + _ROUND
        if not grown:
            self._region *= 2

    def _split(self, address: int, count: int) -> None:
        rest = address + count
        self._size[rest], self._size[address] = self._size[address] - count, count
        following = self._after.get(address)
        self._after[address], self._before[rest] = rest, address
        if following is not None:
            self._after[rest], self._before[following] = following, rest
        bisect.insort(self._free, (self._size[rest], rest))

    def _merge(self, first: int, second: int) -> int:
        self._size[first] += self._size.pop(second)
        following = self._after.pop(second, None)
        self._before.pop(second, None)
        if following is None:
            self._after.pop(first, None)
        else:
            self._after[first], self._before[following] = following, first
        return first
