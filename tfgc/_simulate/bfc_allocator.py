"""TensorFlow's best-fit allocator with coalescing, as far as bytes in use go.

What the allocator reports is more than what was asked for: a free chunk of up to twice the
size, or 128 MiB more, is handed out whole. Regions of the device grow by doubling. Read in
TensorFlow's `bfc_allocator.cc` (release 2.21).

On a CPU buffers below 256 KiB come from another pool, which the reported peak leaves out.
"""

import bisect

_ROUND = 256
_FIRST_REGION = 2 << 20
_MOST_WASTE = 128 << 20
SMALL = 256 << 10


class Allocator:
    """Chunks of regions, in use or free."""

    def __init__(self):
        self.in_use = 0
        self._region = _FIRST_REGION
        self._free = []  # (size, address)
        self._size = {}  # of each chunk, by address
        self._before, self._after = {}, {}  # neighbours in the same region
        self._top = 0

    def take(self, count):
        """Hand out a chunk; return its address, or None for what another pool serves."""
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

    def give(self, address):
        """Take a chunk back."""
        if address is None:
            return
        self.in_use -= self._size[address]
        for neighbour in (self._after.get(address), self._before.get(address)):
            if neighbour is not None and self._is_free(neighbour):
                self._free.remove((self._size[neighbour], neighbour))
                address = self._merge(*sorted((address, neighbour)))
        bisect.insort(self._free, (self._size[address], address))

    def _is_free(self, address):
        at = bisect.bisect_left(self._free, (self._size[address], address))
        return at < len(self._free) and self._free[at] == (self._size[address], address)

    def _extend(self, count):
        grown = count > self._region
        while count > self._region:
            self._region *= 2
        self._size[self._top] = self._region
        bisect.insort(self._free, (self._region, self._top))
        # Regions do not touch, so that their chunks never merge.
        self._top += self._region + _ROUND
        if not grown:
            self._region *= 2

    def _split(self, address, count):
        rest = address + count
        self._size[rest], self._size[address] = self._size[address] - count, count
        following = self._after.get(address)
        self._after[address], self._before[rest] = rest, address
        if following is not None:
            self._after[rest], self._before[following] = following, rest
        bisect.insort(self._free, (self._size[rest], rest))

    def _merge(self, first, second):
        self._size[first] += self._size.pop(second)
        following = self._after.pop(second, None)
        self._before.pop(second, None)
        if following is None:
            self._after.pop(first, None)
        else:
            self._after[first], self._before[following] = following, first
        return first
