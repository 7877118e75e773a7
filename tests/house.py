"""The folders of the package from the ground up: a file imports from its own, and from those below."""

FLOORS = (
    "_core", "_records", "_framework", "zoo", "_step", "_rewrite", "_run", "_simulate", "strategies", "_report",
    "_tracing", "_pairs", "_planning", "_training", "_verify", "_compiled",
    "_measure", "_cli",
)  # fmt: skip
