"""How many bytes of cotangents are alive on the way from the loss to the inputs.

Each reader of a tensor makes a separate cotangent. They are summed when the node that made the tensor runs backward, as
TensorFlow's tape does. None of this depends on a plan.
"""

from tfgc._core.graph import Graph
from tfgc._core.tensors import Ref


class CotangentFlow:
    """The cotangents of one backward pass, last node first. The arguments are as in `Buffers`."""

    def __init__(self, graph: Graph, number: dict[Ref, int], size: list[int], outputs: list[tuple[int, ...]]) -> None:
        n = len(graph)
        returned = dict.fromkeys(number[ref] for ref in graph.outputs if graph.floating(ref))
        counts = dict.fromkeys(returned, 1)  # cotangents of each buffer
        # For each node bytes alive when its backward pass starts; None if it has none.
        self.alive_at: list[int | None] = [None] * n
        self.pending = [0] * (n + 1)  # for each position bytes alive when the nodes from there on have run backward
        self.pending[n] = alive = sum(size[buffer] for buffer in counts)
        for i in reversed(range(n)):
            made = [buffer for buffer in outputs[i] if buffer in counts]
            if made:
                alive -= sum((counts[buffer] - 1) * size[buffer] for buffer in made)  # one sum of them
                self.alive_at[i] = alive
                for buffer in dict.fromkeys(number[ref] for ref in graph.costs[i].differentiable_inputs):
                    counts[buffer] = counts.get(buffer, 0) + 1
                    alive += size[buffer]
                alive -= sum(size[buffer] for buffer in made)
                for buffer in made:
                    del counts[buffer]
            self.pending[i] = alive
