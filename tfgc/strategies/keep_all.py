"""Nothing is recomputed: one segment, kept. The baseline, and the fastest plan."""

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan


def plan(graph: Graph) -> Plan:
    """Return a plan of one kept segment.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(9)])
        >>> plan = tfgc.plan(model, strategy="keep_all")
        >>> [segment.mode for segment in plan.segments], plan.outlook.overhead
        (['keep'], 0.0)
    """
    return Plan.from_cuts(graph, [], strategy="keep_all")
