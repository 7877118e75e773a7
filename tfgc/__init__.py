"""Training in less memory, for TensorFlow 2 and Keras 3: exact recomputation."""

import importlib

__version__ = "0.1.0"

_HOME = {
    "plan": "_planner",
    "pareto": "_planner",
    "estimate": "_planner",
    "enable": "_enable",
    "disable": "_enable",
    "split": "_split",
    "recompute": "_recompute",
    "train_step": "_train",
    "verify": "_verify",
    "compare": "_measure",
    "max_batch": "_search",
    "Plan": "_plan",
    "Segment": "_plan",
    "Graph": "_graph",
    "Measurement": "_results",
    "Verdict": "_verdict",
    "MaxBatch": "_limit",
    "TfgcError": "_errors",
    "InfeasibleBudgetError": "_errors",
    "UnsupportedModelError": "_errors",
    "PlanMismatchError": "_errors",
    "OptionError": "_errors",
    "ReplayMismatchError": "_errors",
    "NotReplayableWarning": "_errors",
    "StaleTraceWarning": "_errors",
    "OpenSizesWarning": "_errors",
}
__all__ = [*_HOME, "strategies", "zoo"]


def __getattr__(name):
    """Import what is asked for: planning and help need no TensorFlow."""
    if name in ("strategies", "zoo"):
        return importlib.import_module(f"tfgc.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'tfgc' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tfgc.{_HOME[name]}"), name)


def __dir__():
    return sorted(__all__)
