"""The inputs of a first run in the host's memory, fetched back while the segment after it is differentiated."""

import contextlib
import contextvars
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import backward_order, graph_building, host_memory, private_api
from tfgc._framework.replaced import within

_NOTED: contextvars.ContextVar["list[HostInputs] | None"] = contextvars.ContextVar("tfgc_host_inputs", default=None)


def noted() -> "contextlib.AbstractContextManager[list[HostInputs]]":
    """A context that gives a list of what is stored on the host by the runs in it."""
    return within(_NOTED, [])


class HostInputs:
    """Inputs, those in some positions copied to the host and not held here; what is there anyway stays as it is."""

    def __init__(self, inputs: Sequence[tf.Tensor], positions: Collection[int], name: str) -> None:
        if private_api.in_xla():
            raise UnsupportedModelError(
                f"{name} stores its inputs in host memory, and XLA keeps all buffers of a step on one device: leave "
                "jit_compile out, or use a plan without offload"
            )
        self._held: list[tf.Tensor | None] = list(inputs)
        self._copies: dict[int, host_memory.HostCopy] = {}
        for i in positions:
            host = host_memory.host_of(inputs[i])
            if host is not None:
                self._copies[i], self._held[i] = host_memory.HostCopy(inputs[i], host), None
        self._captures = graph_building.captures_so_far()
        self._fetched: tuple[object, dict[int, tf.Tensor]] | None = None
        noted_here = _NOTED.get()
        if noted_here is not None and self._copies:
            noted_here.append(self)

    def ahead(self, tensor: Any) -> Any:
        """A copy of a segment's result, and of what Keras attached to it, whose gradient has the inputs fetched."""

        def start(upstream: tf.Tensor) -> tf.Tensor:
            if graph_building.can_reach(self._captures):
                with graph_building.redirect_captures(self._captures):
                    self._fetch([upstream])
            return upstream

        return backward_order.passed(tensor, start, [])

    def _fetch(self, after: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        here = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if self._fetched is None or self._fetched[0] is not here:
            self._fetched = here, {i: copy.fetched(after) for i, copy in self._copies.items()}
        return self._fetched[1]

    def taken(self, after: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The inputs, fetched by now or else when `after` are there; they are fetched anew for the next replay."""
        fetched = self._fetch(after)
        self._fetched = None
        return [x if x is not None else fetched[i] for i, x in enumerate(self._held)]
