"""Plan a network's cases and predict them, all from one reading of the model; nothing is trained.

Cases of a model without a graph, and given plans by calls of any model, are read by the calls of its layers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import keras

from tfgc._calls.call_plans import CallPlans
from tfgc._core.plan import Plan
from tfgc._measure import any_model, examples
from tfgc._measure.case_readings import Reading
from tfgc._planning import annotated, budgets, by_calls, sweep
from tfgc._planning.node_plans import NodePlans
from tfgc._records.job import Case, PredictionJob
from tfgc._records.reply import CasePrediction, CasePredictions
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
    if any_model.takes_example(model, first.example):
        data = examples.batch(any_model.completed(model, first.example, batch_size), batch_size)
        fixed = budgets.fixed_bytes(model)
        readings = _readings(
            {False, *_xla(job.cases)}, lambda xla: Reading(CallPlans(model, data, xla=xla), fixed, given)
        )
        found = _predicted(readings, job.cases)
    else:
        fixed = budgets.fixed_bytes(model, "sgd")
        of_calls = {name: plan for name, plan in given.items() if plan.calls}
        of_nodes = {name: plan for name, plan in given.items() if not plan.calls}

        def by_call(xla: bool) -> Reading:
            plans = by_calls.plans_of_functional(model, batch_size, shapes, "xla" if xla else "graph")
            return Reading(plans, fixed, of_calls)

        def by_node(xla: bool) -> Reading:
            graph = annotated.graph_of(
                model, batch_size, shapes, None, measure=job.measure, whole_step=True, loss="mse", xla=xla
            )
            return Reading(NodePlans(graph), fixed, of_nodes)

        declared = keras_graph.read(model)
        sweep.check(of_nodes.items(), lambda plan: plan.check(declared))
        apart = [case for case in job.cases if case.case in of_calls]
        others = [case for case in job.cases if case.case not in of_calls]
        found = _predicted(_readings(_xla(apart), by_call), apart)
        readings = _readings({False, *_xla(others)}, by_node)
        found.update(_predicted(readings, others))
    return CasePredictions(found, readings[False].front(job) if job.front else None)


def _xla(cases: Sequence[Case]) -> set[bool]:
    """Whether XLA compiles the step, in any of the cases."""
    return {case.mode == "xla" for case in cases}


def _readings(modes: Collection[bool], make: Callable[[bool], Reading]) -> dict[bool, Reading]:
    """A reading of the step in a graph, of it as XLA compiles it, or both."""
    return {xla: make(xla) for xla in sorted(modes)}


def _predicted(readings: Mapping[bool, Reading], cases: Sequence[Case]) -> dict[str, CasePrediction]:
    return {case.name: readings[case.mode == "xla"].predict(case) for case in cases}
