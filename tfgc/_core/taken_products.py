"""Whether a selective replay takes over products with weights and masks drawn from seeds of the first run.

It runs a copy of the trace of the first run, and so does a graph with none of what cannot be copied: a
`tf.random.Generator`, branches and loops. A segment with one such node is run again as a whole.
"""

import itertools
from collections.abc import Sequence

from tfgc._core.buffers import Buffers
from tfgc._core.graph import Graph


def takes_over_products(b: Buffers, positions: Sequence[int]) -> bool:
    """Whether a selective replay of these nodes, one after the other, takes over anything."""
    first, behind = positions[0], positions[-1] + 1
    uncopied = b.graph.once(_uncopied_before)
    return b.selective_before[behind] > b.selective_before[first] and uncopied[behind] == uncopied[first]


def _uncopied_before(graph: Graph) -> list[int]:
    """For each position how many nodes before it are not copied."""
    return [0, *itertools.accumulate(not cost.copied for cost in graph.costs)]
