"""Training in less memory, for TensorFlow 2 and Keras 3: exact recomputation.

Public names are imported on first use: planning and help need no TensorFlow. Only the standard library
is imported here, since `python -m tfgc` reads this file while the current folder is still on the path. Editors read
`__init__.pyi`.
"""

import importlib

__version__ = "0.1.0"

# Public names by the module that has them.
_NAMES = {
    "_core.graph": "Cost Graph Node Ref Spec",
    "_core.segments": "Outlook Segment",
    "_core.plan": "Plan",
    "_errors": "InfeasibleBudgetError NotReplayableWarning NothingSavedWarning OptionError "
    "OutOfMemoryWarning PlanMismatchError StaleTraceWarning TfgcError "
    "UncountedMemoryWarning UnsupportedModelError",
    "_compiled.memory": "compiled_memory",
    "_framework.memory_counts": "peak",
    "_measure.compare": "compare",
    "_measure.comparison": "Comparison",
    "_measure.confirmed": "plan",
    "_measure.max_batch": "max_batch",
    "_planning.estimates": "estimate",
    "_planning.planner": "pareto",
    "_records.compiled_memory": "CompiledBuffer CompiledMemory",
    "_records.batch_limit": "MaxBatch Reach",
    "_records.measurement": "Measurement",
    "_pairs.recompute": "recompute",
    "_simulate.simulator": "Prediction",
    "_training.peak_memory": "PeakMemory",
    "_training.enable": "disable enable",
    "_training.function": "function",
    "_training.split": "split",
    "_training.status": "PlanStatus Status status",
    "_training.train_step": "train_step",
    "_verify.verdicts": "Verdict",
    "_verify.verify": "verify",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_HOME, "strategies", "zoo"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in ("strategies", "zoo"):
        return importlib.import_module(f"tfgc.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'tfgc' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tfgc.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
