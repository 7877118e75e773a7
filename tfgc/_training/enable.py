"""Switch a model to a plan and back, without making another model of it."""

from collections.abc import Iterable
from typing import Any, TypeVar

import keras

from tfgc import _progress, strategies
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, check_int
from tfgc._framework import keras_models, model_checks
from tfgc._planning.budgets import Budget
from tfgc._planning.request import Request
from tfgc._tracing import functional_graphs
from tfgc._training import fit_guard, layer_calls, layer_selectors, out_of_memory, stale_traces
from tfgc._training.layer_selectors import Selector
from tfgc._training.stand_ins import of_other_graph, plan_later
from tfgc.strategies import Strategy

Model = TypeVar("Model", bound=keras.Model)


def enable(
    model: Model,
    plan: Plan | None = None,
    *,
    budget: Budget | None = None,
    strategy: Strategy | None = None,
    layers: Selector | Iterable[Selector] | None = None,
    verbose: int = 1,
    on_oom: str | None = None,
    compile_candidates: int = 3,
    **strategy_options: Any,
) -> Model:
    """Make `model` train in less memory from now on, in `fit` and in custom loops.

    Without a `plan`, planning waits for the first training call, when the sizes, the batch, the mode, the compiled
    loss and optimizer, and the free memory are known: `model(x, training=True)`, or `model(x)` that a tape records.
    One line then says what was chosen and what it should save. Inputs whose sizes differ in more than the batch get
    their own plans, and so do each set of trained weights, each optimizer with other slots, and each loss. With a
    budget, a larger batch is planned again, and smaller ones then run by that plan.

    The model object stays the same, with its weights, names, `summary`, `save`, `evaluate`, `predict` and callbacks.
    `model(x, training=True)`, and `model(x)` under a tape, run the plan; an explicit `training=False` runs the original
    code, but for layers that recompute one by one (`layers=`): under a tape they do so then, too.
    Gradients, losses and states are those of the plain model. In loops of your own, the model's call and its gradients
    are traced together, and run as functions. Enabling again replaces the plan, and what was enabled of the
    model's parts. Layers may be frozen and unfrozen at any time. When a functional model changes (`Sequential.add`,
    `pop`), its next call is planned again; a plan that you gave cuts where it did, if these places are found.

    Every Keras model that holds this one (a GAN, a distiller) trains by the plan too, from its next step on: its
    functions are traced again.

    Args:
        model: Any `keras.Model`. It need not be built yet if no plan is given.
        plan: A `tfgc.Plan` for it, made ahead by `tfgc.plan`. Default: planned at the first training call. One of the
            operations of a step is what that step is cut by; a step with other operations is planned by the strategy
            and the budget of the plan.
        budget: What a step may use: bytes, "4GB", "70%" or 0.7 of the plain step's peak, or "auto", as for
            `tfgc.plan`. Default: no budget, the least peak. Steps are measured, and change the plan at most
            three times; in a loop of your own from the start of the model's call to the end of its gradients.
        strategy: A strategy and, as further arguments, its options: `strategy="uniform", segments=4`. Default: the
            fastest plan within the budget; without one `optimal`. Where that saves less than 5 % of a step, nothing
            is changed, and a `NothingSavedWarning` says why. It cuts the operations of any model's step, in
            `fit` of the whole step, in your own loops of the model's call.
        layers: Layers of the model to recompute, each as one segment, in place of a plan: one, or a list, of
            objects, names (every layer with that name), paths, patterns (`"encoder_*"`, for names; with a slash for
            paths), classes, and functions that take a layer and return whether to recompute it. A chosen layer stores
            its inputs; where one is inside another, the outer one counts. With a `budget`, the layers to choose
            among: as few of them are recomputed as the budget allows.
        verbose: 1: print a line on standard error for each plan. 0: print nothing.
        on_oom: What `fit` and `train_on_batch` of this model do when a step runs out of memory. "raise": raise, with an
            explanation. "replan": put back the state from before the step, plan for less, run the step again by
            that plan, and warn, as with `tfgc.train_step`. Default: in `fit` with a budget "replan" where a step can
            be put back without a copy of the weights, which XLA takes, and the batch size is known; else "raise".
        compile_candidates: Where `fit` compiles the step with XLA and nothing says how to plan it but a budget: how
            many steps to compile at most, the plain one among them, to take the plan that the compiler says is best.
            A line says so where one takes long. 1: none; what is simulated counts.
        **strategy_options: Options of the strategy.

    Returns:
        The model.

    Raises:
        UnsupportedModelError: If the model has no weights; with `layers` and a budget, in the first training step, if
            its calls cannot be traced symbolically.
        PlanMismatchError: In the first training call, if the plan was made for another model; in a later one, if
            the model has changed and the plan cuts behind what is gone.
        InfeasibleBudgetError: In a training call, if three steps by the least plan were measured to need more than a
            budget in bytes, or if it is simulated to need 1.3 times as much.
        OptionError: For unknown strategies and options; in the first training call, if there is a budget and the batch
            or other sizes are open there, as where a dataset does not say how large its batches are; from `fit`, with
            `on_oom="replan"`, where a step cannot be put back: with `steps_per_execution` or replicas.

    Warns:
        NothingSavedWarning: In the first training call, if no plan saves 5 % of the step.
        NotReplayableWarning: In the first training call, if the model cannot be traced, and is recomputed part by part.
        StaleTraceWarning: If a `tf.function` that you wrote has trained with the model: TensorFlow keeps using its
            trace.
        OutOfMemoryWarning: From `fit`, with `on_oom="replan"`, when a step is run again.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
        >>> tfgc.enable(model) is model
        True
        >>> tfgc.disable(model) is model
        True
    """
    model_checks.check_model(model)
    strategies.check_plan(plan, "give {}, or a plan made with tfgc.plan(model, ...)")
    if plan is not None and (strategy is not None or budget is not None or strategy_options):
        asked = {"strategy": strategy, "budget": budget, **strategy_options}
        raise OptionError(
            "give a plan, or what to plan by ("
            + ", ".join(f"{k}={v!r}" for k, v in asked.items() if v is not None)
            + "), not both"
        )
    shown = _progress.check_verbose(verbose)
    out_of_memory.check_on_oom(on_oom)
    candidates = check_int("compile_candidates", compile_candidates)
    if on_oom == "replan" and layers is not None:
        raise OptionError(f"on_oom={on_oom!r} makes another plan: leave out layers=, which names what to recompute")
    if layers is not None and (plan is not None or strategy is not None or strategy_options):
        raise OptionError("layers= names what to recompute: leave plan, strategy and its options out")
    if plan is not None or (layers is not None and budget is None):
        switch(model, plan, layers, shown)
    else:
        among = None if layers is None else tuple(layer_selectors.choose(model, layers))
        plan_later(model, Request(strategy, budget, strategy_options, among, candidates=candidates), shown)
    changed = [layer for layer in keras_models.layers_inside(model) if functional_graphs.is_patched_call(layer)]
    fit_guard.install(model, on_oom, by_plan=layers is None)
    stale_traces.renew(model, "tfgc.enable", changed)
    return model


def switch(
    model: keras.Model, plan: Plan | None, layers: Selector | Iterable[Selector] | None = None, verbose: bool = False
) -> None:
    """Let a model run by a plan, or recompute chosen layers, and leave what was traced before as it is."""
    if layers is not None:
        chosen = layer_selectors.choose(model, layers)
        layer_calls.restore_calls(model)
        layer_calls.replace_calls(model, chosen)
    elif plan is not None:
        if not plan.operations:
            raise of_other_graph(model, plan)
        plan_later(model, Request.of(plan), verbose)


def disable(model: Model) -> Model:
    """Undo `enable`: the model and its layers run their original code again.

    So do Keras models that hold it. A `StaleTraceWarning` names each `tf.function` that keeps its trace, as with
    `enable`.

    Returns:
        The model.

    Example:
        >>> import keras, numpy as np, tfgc
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        >>> before = model(np.ones((2, 8)))
        >>> model = tfgc.disable(tfgc.enable(model, strategy="uniform"))
        >>> bool(np.array_equal(before, model(np.ones((2, 8)))))
        True
    """
    model_checks.check_model(model)
    changed = layer_calls.restore_calls(model)
    fit_guard.remove(model)
    if changed:
        stale_traces.renew(model, "tfgc.disable", changed)
    return model
