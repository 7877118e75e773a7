"""Copies to the host's memory and back as nodes of a GraphDef; `_framework.host_memory` says why they are so."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfgc._framework import host_memory
from tfgc._step.step import HOST_COPIES, TO_HOST, Step, Tensor
from tfgc._step.trace import Trace


class HostNodes:
    """The nodes for a step in the graph at hand; what is on the host already is read where it is."""

    def __init__(self, trace: Trace, step: Step) -> None:
        self._step, self._values = step, dict[int, tf.Tensor]()
        for i, op in step.ops.items():
            if op.type in HOST_COPIES:
                source = op.inputs[0] if op.type == TO_HOST else step.ops[op.inputs[0][0]].inputs[0]
                self._values[i] = trace.ops[source[0]].outputs[source[1]]
        self._places = {i: host_memory.places(value) for i, value in self._values.items()}

    def read(self, tensor: Tensor) -> Tensor:
        """The tensor to read for another one."""
        while tensor[0] in self._places and self._places[tensor[0]] is None:
            tensor = self._step.ops[tensor[0]].inputs[0]
        return tensor

    @property
    def unneeded(self) -> set[str]:
        """Names of the copies that have no nodes."""
        return {self._step.ops[i].name for i, places in self._places.items() if places is None}

    def of(self, number: int, controls: Iterable[str]) -> list[Any]:
        """The nodes for a copy, which waits for some operations: on the host."""
        places = self._places[number]
        assert places is not None
        op, (host, device) = self._step.ops[number], places
        read = self._step.tensor_name(op.inputs[0])
        waits = [f"^{name}" for name in sorted(controls)]
        if op.type == TO_HOST:
            return [self._node(number, op.name, host, [read, *waits])]
        waiting = f"{op.name}/waits"
        return [
            self._node(number, waiting, host, [read, *waits]),
            self._node(number, op.name, device, [waiting]),
        ]

    def _node(self, number: int, name: str, device: str, reads: list[str]) -> Any:
        node = tf.compat.v1.NodeDef(name=name, op="Snapshot", device=device, input=reads)
        node.attr["T"].type = self._values[number].dtype.as_datatype_enum
        return node
