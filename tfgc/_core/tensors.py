"""Tensors of a graph: how they are named, their shape and dtype, and their bytes."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from tfgc._errors import OptionError


class Ref(NamedTuple):
    """One output of a node, or a graph input (index 0)."""

    node: str
    index: int = 0

    @property
    def name(self) -> str:
        """The name of the tensor: `node:index`."""
        return f"{self.node}:{self.index}"


@dataclasses.dataclass(frozen=True)
class Spec:
    """Shape and dtype of a tensor; the first dimension is None for the batch.

    `varies` means that each None, the first one included, depends on the values in the batch.
    """

    shape: tuple[int | None, ...]
    dtype: str = "float32"
    varies: bool = False

    def bytes(self, batch_size: int | None = None) -> int:
        """Bytes of the tensor, or of one sample of it without `batch_size`.

        Raises:
            OptionError: If a dimension other than the batch is unknown.
        """
        if self.varies:
            raise OptionError(
                f"it makes a tensor of shape {self.shape}, whose unknown sizes depend on the values in the batch, so "
                "its bytes cannot be known in advance. Give it a fixed size, or apply it to the data before the model; "
                "strategy='uniform' and 'manual' need no sizes"
            )
        if self.open:
            raise OptionError(
                f"a tensor has the shape {self.shape}, of which more than the batch is unknown, and tfgc does not "
                "guess sizes: give input_shapes={input name: shape without batch}, or example=batch"
            )
        batch = 1 if batch_size is None else batch_size
        return math.prod(batch if d is None else d for d in self.shape) * itemsize(self.dtype)

    @property
    def open(self) -> bool:
        """Whether its bytes are unknown even for one sample."""
        return self.varies or None in self.shape[1:]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def itemsize(dtype: str) -> int:
    """Bytes of one element of a dtype, given by name.

    A string counts as its 24-byte handle, TensorFlow's `tstring` (tsl/platform/ctstring_internal.h): that is all that
    the allocator hands out. Text of more than 22 bytes lies on the heap, which the allocator does not count.
    """
    if dtype == "bool":
        return 1
    if dtype == "string":
        return 24
    bits = re.search(r"\d+", dtype)
    if bits is None:
        raise OptionError(f"the size of a {dtype} element is not known")
    return max(1, int(bits[0]) // 8)


def peak_of(byte_trace: Iterable[int]) -> int:
    """The most bytes that a trace of signed counts reaches, at least 0.

    >>> peak_of([4, 8, -8, 2])
    12
    """
    return max(0, max(itertools.accumulate(byte_trace), default=0))
