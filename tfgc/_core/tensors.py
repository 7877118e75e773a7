"""Tensors of a graph: how they are named, their shape and dtype, and their bytes."""

import dataclasses
import math
import re
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
    """Shape and dtype of a tensor; the first dimension is None for the batch."""

    shape: tuple[int | None, ...]
    dtype: str = "float32"

    def bytes(self, batch_size: int | None = None) -> int:
        """Bytes of the tensor, or of one sample of it without `batch_size`.

        Raises:
            OptionError: If a dimension other than the batch is unknown.
        """
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
        return None in self.shape[1:]

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
