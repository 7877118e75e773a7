"""Training in less memory, for TensorFlow 2 and Keras 3: exact recomputation.

Public names are imported on first use: planning and help need no TensorFlow. Only the standard library
is imported here, since `python -m tfgc` reads this file while the current folder is still on the path. Editors read
`__init__.pyi`.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "Cost": "_core.graph",
    "Graph": "_core.graph",
    "Node": "_core.graph",
    "Ref": "_core.graph",
    "Spec": "_core.graph",
    "Outlook": "_core.segments",
    "Plan": "_core.plan",
    "Segment": "_core.segments",
    "InfeasibleBudgetError": "_errors",
    "NotReplayableWarning": "_errors",
    "NothingSavedWarning": "_errors",
    "OpenSizesWarning": "_errors",
    "OptionError": "_errors",
    "OutOfMemoryWarning": "_errors",
    "PlanMismatchError": "_errors",
    "ReplayMismatchError": "_errors",
    "StaleTraceWarning": "_errors",
    "TfgcError": "_errors",
    "UncountedMemoryWarning": "_errors",
    "UnsupportedModelError": "_errors",
    "compiled_memory": "_compiled.memory",
    "compare": "_measure.compare",
    "plan": "_measure.confirmed",
    "max_batch": "_measure.max_batch",
    "estimate": "_planning.estimates",
    "pareto": "_planning.planner",
    "CompiledBuffer": "_records.compiled_memory",
    "CompiledMemory": "_records.compiled_memory",
    "MaxBatch": "_records.batch_limit",
    "Reach": "_records.batch_limit",
    "Measurement": "_records.measurement",
    "recompute": "_replay.recompute",
    "Prediction": "_simulate.simulator",
    "PeakMemory": "_training.peak_memory",
    "disable": "_training.enable",
    "enable": "_training.enable",
    "split": "_training.split",
    "PlanStatus": "_training.status",
    "Status": "_training.status",
    "status": "_training.status",
    "train_step": "_training.train_step",
    "Verdict": "_verify.verdicts",
    "verify": "_verify.verify",
}
__all__ = sorted([*_HOME, "strategies", "zoo"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in ("strategies", "zoo"):
        return importlib.import_module(f"tfgc.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'tfgc' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tfgc.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
