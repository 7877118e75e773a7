"""What stands in for the methods of an enabled model: put there to plan when it first trains, and found again."""

from typing import Any

import keras

from tfgc import strategies
from tfgc._core.plan import Plan
from tfgc._errors import PlanMismatchError
from tfgc._framework import keras_models
from tfgc._planning import ahead, budgets, step_traces
from tfgc._planning.request import Request
from tfgc._tracing import functional_graphs
from tfgc._training import layer_calls
from tfgc._training.planned_calls import PlannedCalls


def plan_later(model: keras.Model, request: Request, verbose: bool | None) -> None:
    """Put stand-ins in place of a model's methods; raise now what would be wrong at the first call, too."""
    if request.budget is not None:
        budgets.check_budget(request.budget)
    if not ahead.applies_to(model) and (not keras_models.runs_graph(model) or model.built):
        check_trainable(model)
    strategies.check_options(request.chosen, request.options, request.budget)
    layer_calls.restore_calls(model)
    calls = PlannedCalls(model, request, verbose)
    functional_graphs.replace_method(model, "call", calls.call)
    functional_graphs.replace_method(model, "train_step", calls.train_step)


def check_trainable(model: keras.Model) -> None:
    """Raise `UnsupportedModelError` for a model without a graph of nodes, or without weights."""
    functional_graphs.functional_of(model)
    if not model.weights:
        raise step_traces.nothing_to_train(model)


def of_other_graph(model: keras.Model, plan: Plan) -> PlanMismatchError:
    """The error for a plan of nodes, as strategies make them of a graph that is made by hand."""
    return PlanMismatchError(
        f"this plan (strategy {plan.strategy!r}) is of the nodes of a graph, and {model.name!r} trains by the "
        "operations of its step: give the strategy to tfgc.plan or tfgc.enable"
    )


def promised_bytes(model: keras.Model) -> tuple[int | None, int | None]:
    """What the plan of an enabled model predicts for a step of `fit`, None where it does not know sizes; its budget."""
    own = stand_in(model)
    made = own.latest if isinstance(own, PlannedCalls) else None
    if isinstance(own, PlannedCalls) and made is not None:  # Of inputs of several sizes, the largest.
        mode = made.mode
        made = max(own.plans.values(), key=lambda one: (one.mode == mode, one.predicted_bytes or 0))
    plan = None if made is None else made.plan
    predicted = None if made is None else made.predicted_bytes
    if made is None and isinstance(own, PlannedCalls) and own.whole.given is not None:
        plan = own.whole.given
        predicted = plan.outlook and plan.outlook.needed_bytes
    return predicted, plan and plan.outlook and plan.outlook.budget_bytes


def changes_of(model: keras.Model) -> int:
    """How often plans of an enabled model were changed by what steps were measured to need."""
    own = stand_in(model)
    return sum(made.changes for made in own.plans.values()) if isinstance(own, PlannedCalls) else 0


def mode_of_fit(model: Any) -> str:
    """The mode in which `fit` runs the steps of a compiled model."""
    return "compiled" if model.run_eagerly else "xla" if model.jit_compile else "graph"


def stand_in(model: keras.Layer) -> Any:
    """The object whose method tfgc put in place of the `call` of a model or layer; None if there is none."""
    return getattr(vars(model).get("call"), "__self__", None)
