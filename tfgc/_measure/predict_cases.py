"""Plan a network's cases and predict them, all from one reading of the model; nothing is trained.

Cases of a model without a graph, and given plans by calls of any model, are read by the calls of its layers.
"""

import functools
from typing import Any

import keras

from tfgc._calls.call_plans import CallPlans
from tfgc._core.plan import Plan
from tfgc._measure import any_model, examples
from tfgc._measure.case_readings import Reading
from tfgc._planning import annotated, budgets, by_calls, sweep
from tfgc._planning.node_plans import NodePlans
from tfgc._records.job import CasePredictions, PredictionJob
from tfgc._tracing import keras_graph


def predict_cases(model: keras.Model, job: PredictionJob) -> CasePredictions:
    """What a `PredictionJob` finds for its model, which is not changed.

    Given plans by calls of a functional model are in no front: its plans and the plain step are read by nodes.

    Raises:
        PlanMismatchError: If a given plan is for another model.
    """
    first = job.cases[0]
    batch_size, shapes = first.batch_size, first.input_shapes
    given = {case.case: Plan.from_json(case.plan) for case in job.cases if case.plan is not None}
    data: Any = None
    of_calls: dict[str, Plan] = {}  # apart from the other cases
    if any_model.takes_example(model, first.example):
        data = examples.batch(any_model.completed(model, first.example, batch_size), batch_size)
        fixed = budgets.fixed_bytes(model)
    else:
        fixed, declared = budgets.fixed_bytes(model, "sgd"), keras_graph.read(model)
        of_calls = {name: plan for name, plan in given.items() if plan.calls}
        sweep.check([pair for pair in given.items() if pair[0] not in of_calls], lambda plan: plan.check(declared))

    @functools.cache
    def reading(by_call: bool, xla: bool) -> Reading:
        """The cases of given plans by calls, or the others, as XLA compiles the step or in a graph."""
        if data is not None:
            return Reading(CallPlans(model, data, xla=xla), fixed, given)
        if by_call:
            plans = by_calls.plans_of_functional(model, batch_size, shapes, "xla" if xla else "graph")
            return Reading(plans, fixed, of_calls)
        graph = annotated.graph_of(
            model, batch_size, shapes, None, measure=job.measure, whole_step=True, loss="mse", xla=xla
        )
        return Reading(NodePlans(graph), fixed, given)

    found = {case.name: reading(case.case in of_calls, case.mode == "xla").predict(case) for case in job.cases}
    return CasePredictions(found, reading(False, False).front(job) if job.front else None)
