"""Nothing is recomputed: one segment, kept. The baseline, and the fastest plan."""

from tfgc._plan import Plan


def plan(graph):
    """Return a plan of one kept segment."""
    return Plan.from_cuts(graph, [], strategy="keep_all")
