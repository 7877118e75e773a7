"""The public names, for editors and type checkers; a test compares them with those of `__init__.py`."""

from . import strategies, zoo
from ._compiled.memory import compiled_memory
from ._core.graph import Cost, Graph, Node, Ref, Spec
from ._core.plan import Plan
from ._core.segments import Outlook, Segment
from ._errors import (
    InfeasibleBudgetError,
    NothingSavedWarning,
    NotReplayableWarning,
    OptionError,
    OutOfMemoryWarning,
    PlanMismatchError,
    StaleTraceWarning,
    TfgcError,
    UncountedMemoryWarning,
    UnsupportedModelError,
)
from ._framework.memory_counts import peak
from ._measure.compare import compare
from ._measure.comparison import Comparison
from ._measure.confirmed import plan
from ._measure.max_batch import max_batch
from ._pairs.recompute import recompute
from ._planning.estimates import estimate
from ._planning.planner import pareto
from ._records.batch_limit import MaxBatch, Reach
from ._records.compiled_memory import CompiledBuffer, CompiledMemory
from ._records.measurement import Measurement
from ._simulate.simulator import Prediction
from ._training.enable import disable, enable
from ._training.function import function
from ._training.peak_memory import PeakMemory
from ._training.split import split
from ._training.status import PlanStatus, Status, status
from ._training.train_step import train_step
from ._verify.verdicts import Verdict
from ._verify.verify import verify

__version__: str

__all__ = [
    "Comparison",
    "CompiledBuffer",
    "CompiledMemory",
    "Cost",
    "Graph",
    "InfeasibleBudgetError",
    "MaxBatch",
    "Measurement",
    "Node",
    "NotReplayableWarning",
    "NothingSavedWarning",
    "OptionError",
    "OutOfMemoryWarning",
    "Outlook",
    "PeakMemory",
    "Plan",
    "PlanMismatchError",
    "PlanStatus",
    "Prediction",
    "Reach",
    "Ref",
    "Segment",
    "Spec",
    "StaleTraceWarning",
    "Status",
    "TfgcError",
    "UncountedMemoryWarning",
    "UnsupportedModelError",
    "Verdict",
    "compare",
    "compiled_memory",
    "disable",
    "enable",
    "estimate",
    "function",
    "max_batch",
    "pareto",
    "peak",
    "plan",
    "recompute",
    "split",
    "status",
    "strategies",
    "train_step",
    "verify",
    "zoo",
]
