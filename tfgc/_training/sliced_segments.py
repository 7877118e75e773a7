"""A segment that runs in slices of the batch, checked at its first call: a plan is data, which may be wrong.

It is checked again when settings of its layers change. One that has come to update variables, such as a
BatchNormalization that was thawed, is let pass: a block runs it on the whole batch, and warns.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._core.graph import Ref
from tfgc._core.recently_used import RecentlyUsed
from tfgc._costs import independence
from tfgc._errors import UnsupportedModelError
from tfgc._framework import private_api
from tfgc._framework.layer_settings import Settings
from tfgc._tracing.keras_graph import Program

_MOST_SETTINGS = 8  # layers may be frozen by turns


@dataclasses.dataclass(eq=False)
class SlicesCheck:
    """Looks whether the nodes of a segment, which read what is `needed` from outside, may run in slices."""

    program: Program
    nodes: Sequence[str]
    needed: Sequence[Ref]
    settings: Settings  # those of its layers
    name: str  # what messages call it
    slices: int  # of the batch, in which it runs

    def __post_init__(self) -> None:
        # Settings that it was checked with, for XLA and for what is not compiled by it.
        self._checked: RecentlyUsed[tuple, bool] = RecentlyUsed(_MOST_SETTINGS)

    def __call__(self, tensors: Sequence[Any]) -> None:
        """Look at the first tensors that the segment is called on, at the first ones under XLA, and after a change."""
        xla = private_api.in_xla()
        if (xla, self.settings()) in self._checked:
            return
        with self.settings.watched():
            reason = self._reason(tensors)
        if reason is not None:
            raise UnsupportedModelError(
                f"{self.name} cannot run in {self.slices} slices of the batch: {reason}. Make a plan with tfgc.plan, "
                "which slices only what allows it, or one without slices"
            )
        self._checked[xla, self.settings()] = True

    def _reason(self, tensors: Sequence[Any]) -> str | None:
        if not all(isinstance(t, tf.Tensor) and t.shape.rank for t in tensors):
            return "it reads something else than dense tensors with the samples in front"
        if len({t.shape[0] for t in tensors}) > 1:  # Next to an open size, a known one is not that of the batch.
            return "the tensors that it reads have different numbers of samples"
        found = independence.read(self.program, dict(zip(self.needed, tensors)), self.nodes)
        for name, obstacle in found.items():
            if obstacle is not None and not (self._checked and obstacle.startswith(independence.UPDATES)):
                return f"{name!r} {obstacle}"
        return None
