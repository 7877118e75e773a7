"""Plan a network's cases and predict them, all from one reading of the model; nothing is trained."""

import dataclasses

from tfgc._core.buffers import Buffers
from tfgc._core.modes import PREDICTABLE
from tfgc._core.plan import Plan
from tfgc._errors import PlanMismatchError, TfgcError
from tfgc._planning import annotated, planner, sweep
from tfgc._records.job import NO_PREDICTIONS, CasePredictions
from tfgc._records.measurement import Predicted, SegmentSummary
from tfgc._simulate import outlooks, simulator
from tfgc._tracing import keras_graph
from tfgc.strategies import budget as budget_strategy


def foresee(model, task, optimizer="sgd", loss="mse"):
    """Return the `CasePredictions` of a `Task` for its model, which is left as it was.

    Args:
        model: The model that `task` names.
        task: The cases, all at one batch size.
        optimizer: Whose slots count in the whole step.
        loss: What each output is compared with its target by.
    """
    first = task.cases[0]
    plans, errors, mismatch = {}, {}, {}
    declared = keras_graph.read(model)
    for case in _distinct(task.cases):
        if case.plan is not None:
            plans[case.case] = Plan.from_json(case.plan)
            try:
                plans[case.case].check(declared)
            except PlanMismatchError as error:
                mismatch[case.case] = str(error)
    if mismatch:
        return dataclasses.replace(NO_PREDICTIONS, mismatch=mismatch)
    graph = annotated.graph_of(
        model, first.batch_size, first.input_shapes, None, measure=task.measure, whole_step=True, loss=loss
    )
    fixed = annotated.fixed_bytes(model, optimizer)
    front = _Front(graph, fixed)
    for case in _distinct(task.cases):
        try:
            if case.share is not None:
                plans[case.case] = front.at(case.share, **case.options)
            elif case.strategy is not None:
                options = dict(case.options)
                budget = options.pop("budget", None)
                plans[case.case] = planner.choose(graph, case.strategy, budget, fixed, options)
            elif case.plan is None and case.peer is None and case.case == "plain":
                plans[case.case] = front.plain
        except TfgcError as error:
            errors[case.case] = str(error)
    plans = {name: outlooks.with_outlook(graph, plan) for name, plan in plans.items()}
    return CasePredictions(
        plans={case.case: plans[case.case].to_json() for case in task.cases if case.case in plans and _planned(case)},
        errors=errors,
        mismatch={},
        predicted={c.name: front.predicted(plans[c.case], c.mode) for c in task.cases if c.case in plans and _known(c)},
        parts={c.case: parts(plans[c.case]) for c in task.cases if c.case in plans and _planned(c)},
        front=front.told(task, plans) if task.front else None,
    )


def parts(plan):
    """The segments of a plan, as they are drawn."""
    return tuple(
        SegmentSummary(
            first=segment.nodes[0],
            last=segment.nodes[-1],
            nodes=len(segment.nodes),
            mode=segment.mode,
            stored_bytes=segment.stored_bytes,
            inside_bytes=segment.inside_bytes,
            inner=() if segment.inner is None else parts(segment.inner),
        )
        for segment in plan.segments
    )


def _distinct(cases):
    """One case of each name, whatever its mode."""
    return {case.case: case for case in cases}.values()


def _known(case):
    """Whether its memory can be predicted: op by op, the tape keeps what no gradient graph shows."""
    return case.mode in PREDICTABLE


def _planned(case):
    return case.plan is not None or case.strategy is not None or case.share is not None


class _Front:
    """The plans of one annotated graph from the least peak to the plain step, made when they are asked for."""

    def __init__(self, graph, fixed):
        self.graph, self.fixed = graph, fixed
        self.plain = Plan.from_cuts(graph, [], strategy="keep_all")
        self.floor, self.floor_node = outlooks.floor(graph, Buffers(graph))
        self.plain_step = simulator.estimate(graph, self.plain, fixed)
        self.pairs = {}

    def made(self, nested=True):
        """Pairs (peak, plan), from the least peak to the plain step."""
        if nested not in self.pairs:
            self.pairs[nested] = budget_strategy.front(self.graph, nested=nested)
        return self.pairs[nested]

    def at(self, share, nested=True):
        """The plan of least work at this share of what the allocator holds above `fixed`; else the one of least."""
        most = share * (self.plain_step.allocated_bytes - self.fixed)
        optimal = planner.choose(self.graph, "optimal", None, self.fixed, {})
        told = [
            (simulator.estimate(self.graph, plan, 0), plan) for plan in (*(p for _, p in self.made(nested)), optimal)
        ]
        fitting = [pair for pair in told if pair[0].allocated_bytes <= most]
        if fitting:
            return min(fitting, key=lambda pair: pair[0].work)[1]
        return min(told, key=lambda pair: (pair[0].allocated_bytes, pair[0].work))[1]

    def told(self, task, plans):
        """The `Front`, with the plans of the task's cases beside it."""
        planned = [c.case for c in _distinct(task.cases) if c.case in plans and _planned(c)]
        others = [(name, plans[name]) for name in planned if name != "optimal"]
        network = task.cases[0].network
        return sweep.front_of(self.graph, self.fixed, network, budgets=task.marks, plans=others, front=self.made())

    def predicted(self, plan, mode):
        """The `Predicted` of a plan in a mode."""
        step = simulator.estimate(self.graph, plan, self.fixed, mode)
        return Predicted(
            peak_bytes=step.allocated_bytes - self.fixed,
            overhead=step.overhead,
            unit=step.unit,
            floor_bytes=self.floor,
            floor_node=self.floor_node,
            plain_bytes=self.plain_step.peak_bytes - self.fixed,
            buffer_bytes=step.peak_bytes - self.fixed,
            fixed_bytes=self.fixed,
        )
