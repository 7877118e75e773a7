"""What XLA's GPU compiler laid out for one training step."""

import dataclasses
from typing import Any

from tfgc._core.shown import Brief
from tfgc._units import format_bytes


@dataclasses.dataclass(frozen=True)
class CompiledBuffer:
    """A buffer that is live when a compiled step needs most.

    Attributes:
        bytes: Its size in bytes.
        layer: The layer whose operation fills it; empty if that is none of a layer.
        operation: That operation, as TensorFlow names it; XLA's instruction where it has no such name.
    """

    bytes: int
    layer: str
    operation: str


@dataclasses.dataclass(frozen=True, repr=False)
class CompiledMemory(Brief):
    """The memory that XLA's GPU compiler lays out for one training step. Nothing was run.

    Attributes:
        target: The device, as it was named.
        device: Its full name.
        device_bytes: The memory that it has.
        peak_bytes: What the step needs at once: arguments, results that take no argument's place, and temporaries.
        argument_bytes: Weights, optimizer slots and the batch.
        temp_bytes: Activations, gradients and workspaces: XLA's temporary allocations.
        largest: The largest buffers (`CompiledBuffer`) among the temporaries at their peak, largest first.
        seconds: How long compiling took.
        compiler: What compiled it.
    """

    target: str
    device: str
    device_bytes: int
    peak_bytes: int
    argument_bytes: int
    temp_bytes: int
    largest: tuple[CompiledBuffer, ...]
    seconds: float
    compiler: str

    @property
    def fits(self) -> bool:
        """Whether the device has that much; CUDA, cuDNN and autotuned workspaces take some hundred MB more."""
        return self.peak_bytes <= self.device_bytes

    def to_dict(self) -> dict[str, Any]:
        """Its fields and `fits`, as JSON has them."""
        return {**dataclasses.asdict(self), "fits": self.fits}

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        lines = [
            f"{format_bytes(self.peak_bytes)} on {self.device}, {verdict} in its {format_bytes(self.device_bytes)}: "
            f"{format_bytes(self.argument_bytes)} of weights, slots and batch, {format_bytes(self.temp_bytes)} besides "
            f"them (laid out by {self.compiler}, not run)",
            *(f"  {format_bytes(buffer.bytes):>9}  {buffer.layer}  {buffer.operation}" for buffer in self.largest),
        ]
        return "\n".join(lines)
