"""The calls of `tape.gradient` that are running, in whose graphs replays are traced."""

import sys
import traceback
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

from tfgc._framework import versions


class GradientCall(NamedTuple):
    tape: tf.GradientTape
    targets: list[tf.Tensor]
    sources: list[tf.Tensor]


def running() -> Iterator[GradientCall]:
    """The calls of `tape.gradient` that run in a graph, innermost first, found among frames: no hook shows them."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        # By name: others may have wrapped the method.
        if frame.f_code.co_name == "gradient" and frame.f_globals.get("__name__") == tf.GradientTape.__module__:
            found = frame.f_locals
            if not {"self", "flat_targets", "flat_sources"} <= found.keys():
                raise versions.unsupported("flat_targets or flat_sources in GradientTape.gradient")
            if any(map(tf.is_symbolic_tensor, found["flat_targets"])):
                yield GradientCall(found["self"], found["flat_targets"], found["flat_sources"])
