"""Choose a plan for a training step of a functional model, once all sizes are known."""

import dataclasses
from collections.abc import Callable

import keras

from tfgc._calls import own_step_plans
from tfgc._calls.own_step_plans import OwnStep, OwnStepPlans
from tfgc._core.graph import Graph
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError
from tfgc._planning import annotated, budgets, by_calls, planner
from tfgc._planning.budgets import StepBudget
from tfgc._planning.node_plans import NodePlans
from tfgc._simulate.simulator import Prediction

# Each budget that is tried for one call is this part of the one before.
_STEP = 2 ** (-1 / 8)


def choose(
    model: keras.Model, graph: Graph, mode: str, request: planner.Request, own_step: OwnStep | None
) -> tuple[Plan, Prediction, Prediction, bool]:
    """The least peak, what a strategy chooses, or what a budget buys, for a graph with the costs of the batch.

    The mode is one that can be predicted. `own_step` is the model's own `train_step` if that makes the call. Returns
    the plan, the step by it and the plain one, and whether these are the model's own `train_step`, not one call.
    """
    graph = annotated.with_step(graph, model)
    strategy, budget, options = request.strategy, request.budget, request.options
    nodes, fixed = NodePlans(graph, mode), budgets.fixed_bytes(model)
    limit = budgets.step_budget(model, nodes, budget)
    plain = nodes.estimate(None, fixed)

    def by_nodes(within: StepBudget | None = limit) -> Plan:  # by default the share of one call
        return planner.choose(nodes, strategy or ("optimal" if budget is None else "budget"), within, options)

    is_free, plans = strategy is None and not options, None
    shapes = [spec.shape for spec in graph.inputs.values()]
    own = own_step_plans.plans_for(model, own_step, shapes, xla=graph.xla)
    if own is not None and not own.is_one_call_of(plain.needed_bytes, fixed):
        plans, plain = own, own.estimate(None, fixed)
        if budget is not None:
            total = budgets.budget_bytes(budget, lambda: plain.needed_bytes, budgets.resident_bytes(model))
            limit = StepBudget(total, fixed)
        if is_free:
            plan = own.least() if limit is None else own.fitting(limit.total, fixed)
        else:
            plan = own.with_figures(by_nodes()) if limit is None else _within(own, nodes, limit, by_nodes)
    elif is_free and by_calls.has_fat_layer(model, graph):
        plan, plans = by_calls.better(model, graph, by_nodes, limit)
    else:
        plan = by_nodes()
    if plans is not None and limit is None:  # A budget is a share of the plain step by nodes.
        plain = plans.estimate(None, fixed)
    step = (plans or nodes).estimate(plan, fixed)
    plan = budgets.promised(plan, step.needed_bytes, plain.needed_bytes, limit and limit.total)
    return plan, step, plain, isinstance(plans, OwnStepPlans)


def _within(own: OwnStepPlans, nodes: NodePlans, budget: StepBudget, by_nodes: Callable[[StepBudget], Plan]) -> Plan:
    """A plan by nodes whose whole step fits in a budget: `by_nodes` is asked for one call in less and less."""
    limit, is_last = nodes.plain_bytes(budget.fixed), False
    while True:
        try:
            plan = by_nodes(dataclasses.replace(budget, total=limit))
        except InfeasibleBudgetError as error:
            plan, is_last = by_nodes(dataclasses.replace(budget, total=error.least)), True
        needed = own.estimate(plan, budget.fixed).needed_bytes
        if needed <= budget.total:
            return own.with_figures(plan)
        if is_last:
            raise InfeasibleBudgetError(budget.total, needed, own.floor[1])
        limit = min(int(limit * _STEP), nodes.estimate(plan, budget.fixed).needed_bytes - 1)
