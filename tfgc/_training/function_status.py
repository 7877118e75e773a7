"""What a `tfgc.function` does, as it says itself."""

import dataclasses
from collections.abc import Iterator

from tfgc._core.shown import Brief, Shown, limited
from tfgc._planning.trace_plans import TracePlans
from tfgc._units import format_bytes, format_measured, format_needs, format_percent


@dataclasses.dataclass(frozen=True, repr=False)
class TraceStatus(Brief):
    """How a step runs for one signature.

    Attributes:
        inputs: Dtypes and shapes of the tensors that it takes.
        needed_bytes: What the step needs, as simulated: variables that it uses, its arguments, and what it makes.
        plain_bytes: The same of the step as it was written.
        held_bytes: Of both, variables and arguments.
        overhead: Work on top of the plain step's, as a fraction of it.
        budget_bytes: What the budget comes to, or None.
        measured_bytes: What it was measured to need most by its plan, or None.
        changes: How often the plan was changed by that.
        unchanged: Why it runs as it is, or "".
        cuts: Where its forward part is cut: the name of each operation, and bytes that are stored of what lies between
            it and the cut before.
    """

    inputs: tuple[str, ...]
    needed_bytes: int
    plain_bytes: int
    held_bytes: int
    overhead: float
    budget_bytes: int | None
    measured_bytes: int | None
    changes: int
    unchanged: str
    cuts: tuple[tuple[str, int], ...]
    _more: str

    def __str__(self) -> str:
        words = [self._needs()]
        words.append(f"runs as it is: {self.unchanged}" if self.unchanged else self._more)
        if self.cuts:
            words.append(f"{len(self.cuts) + 1} segments")
        return f"{', '.join(self.inputs) or 'no tensors'}: {', '.join(words)}"

    def _needs(self) -> str:
        if self.measured_bytes is None:
            return f"{format_needs(self.needed_bytes, self.plain_bytes, self.budget_bytes)} (simulated)"
        if self.budget_bytes is not None:
            return format_measured(self.measured_bytes, budget=self.budget_bytes)
        saves = "" if self.measured_bytes < self.plain_bytes or self.unchanged else "saves nothing: "
        return f"{saves}{format_measured(self.measured_bytes)} of {format_bytes(self.plain_bytes)} simulated"


@dataclasses.dataclass(frozen=True, repr=False)
class FunctionStatus(Shown):
    """What a `tfgc.function` does.

    Attributes:
        name: Of the function.
        traces: A `TraceStatus` for each signature that it was called with.
        note: Why calls run the function as it is, or "".
    """

    name: str
    traces: tuple[TraceStatus, ...]
    note: str = ""

    def __str__(self) -> str:
        count = f"{len(self.traces)} signature{'s' * (len(self.traces) > 1)}" if self.traces else "not called yet"
        head = f"{self.name}: {count if self.traces or not self.note else ''}{', ' * bool(self.traces and self.note)}"
        return "\n".join(limited([head + self.note, *(f"  {trace}" for trace in self.traces)]))

    def explain(self) -> str:
        """Where the forward part of the step is cut, and what is stored there, for each signature."""
        lines = []
        for trace in self.traces:
            cuts = (f"  cut behind {name}, {format_bytes(stored)} stored" for name, stored in trace.cuts)
            lines += [str(trace), *cuts]
        return "\n".join(lines)


def line(plans: TracePlans) -> str:
    """What is said when a trace is made."""
    plan = plans.plan
    if plan.unchanged and (plans.budget_bytes is None or not plans.trace.calls):
        return f"runs as it is: {plan.unchanged}"
    needs = format_needs(plans.needed_bytes, plans.plain_bytes, plans.budget_bytes)
    more = f"runs as it is: {plan.unchanged}" if plan.unchanged else _more(plans)
    return f"{needs} (simulated, variables and arguments included), {more}"


def _more(plans: TracePlans) -> str:
    return f"{format_percent(plans.plan.overhead, '.0f')} more work"


def trace_status(plans: TracePlans) -> TraceStatus:
    """How a step runs for one signature."""
    return TraceStatus(
        plans.inputs, plans.needed_bytes, plans.plain_bytes, plans.held_bytes, plans.plan.overhead, plans.budget_bytes,
        plans.watch.needed_bytes, plans.watch.changes, plans.plan.unchanged, tuple(_cuts(plans)), _more(plans),
    )  # fmt: skip


def _cuts(plans: TracePlans) -> Iterator[tuple[str, int]]:
    traced, step = plans.trace.step, plans.plan.step
    ends = sorted((traced.at[cut.behind], traced.ops[cut.behind].name) for cut in plans.plan.cuts)
    late = [op for op in step.ops.values() if op.segment or op.is_gradient]
    read = {step.buffer(t) for op in late for t in op.inputs}
    stored = [b for b in read if step.is_planned(b) and b[0] in traced.at and not step.ops[b[0]].is_gradient]
    start = -1
    for end, name in ends:
        yield name, sum(step.size(b) for b in stored if start < traced.at[b[0]] <= end)
        start = end
