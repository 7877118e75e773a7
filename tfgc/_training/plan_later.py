"""Let a model plan when it first trains."""

from typing import Any

import keras

from tfgc import strategies
from tfgc._calls import tracing
from tfgc._errors import UnsupportedModelError
from tfgc._framework import keras_models
from tfgc._planning import budgets, by_calls
from tfgc._planning.first_batch import Request
from tfgc._tracing import functional_graphs
from tfgc._training import layer_calls
from tfgc._training.first_call import FirstCall
from tfgc._training.first_step import FirstStep


def plan_later(model: keras.Model, request: Request, verbose: bool, options: dict[str, Any]) -> None:
    """Put stand-ins in place of a model's methods; raise now what would be wrong at the first call, too."""
    if request.budget is not None:
        budgets.check_budget(request.budget)
    if by_calls.applies_to(model) or request.layers is not None:
        by_calls.refuse(request.strategy, None, False, None, request.options)
        layer_calls.restore_calls(model)
        first_step = FirstStep(model, request, verbose, options)
        model.call, model.train_step = first_step.call, first_step.train_step
        return
    if not keras_models.runs_graph(model) or model.built:
        check_trainable(model)
    chosen = request.strategy or ("optimal" if request.budget is None else "budget")
    strategies.check_options(chosen, request.options, request.budget)
    layer_calls.restore_calls(model)
    first_call = FirstCall(model, request, verbose, options)
    model.call = first_call.call
    if tracing.has_own_step(model):
        model.train_step = first_call.train_step


def check_trainable(model: keras.Model) -> None:
    """Raise `UnsupportedModelError` for a model without a graph of nodes, or without weights."""
    functional_graphs.functional_of(model)
    if not model.weights:
        raise UnsupportedModelError(
            f"{model.name!r} has no weights, so there is nothing to train and nothing to recompute"
        )
