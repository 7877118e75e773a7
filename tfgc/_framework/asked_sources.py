"""What the gradient call at hand asks for, while it runs a backward function."""

import sys
from types import FrameType
from typing import Any

from tfgc._framework import versions
from tfgc._framework.internals import gradients_util, imperative_grad


def asked_sources() -> set[int] | None:
    """The ids of the tensors and handles that a tape is asked for gradients of; None where that is not known."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _OF_GRAPHS:
            return None
        if frame.f_code is _OF_TAPES:
            sources: Any = frame.f_locals["sources"]
            return {id(source) for source in sources}
        frame = frame.f_back
    return None


_OF_TAPES = versions.attribute(imperative_grad, "imperative_grad").__code__
_OF_GRAPHS = versions.attribute(gradients_util, "_GradientsHelper").__code__
