"""`tfgc.plan`: a plan which, if that is asked for, is run or compiled in a child process, and corrected by that."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfgc import _progress
from tfgc._compiled import compiler, targets
from tfgc._core.confirmation import Confirmation
from tfgc._core.plan import Plan
from tfgc._errors import OptionError
from tfgc._framework.model_checks import check_model
from tfgc._measure import shipped
from tfgc._measure.measured_step import MeasuredStep, within_budget
from tfgc._planning import budgets
from tfgc._planning.budgets import Budget
from tfgc._planning.watch import MOST_CHANGES
from tfgc._tracing.synthetic import Shapes
from tfgc.strategies import Strategy


def plan(
    model: keras.Model,
    batch_size: int | None = None,
    *,
    strategy: Strategy | None = None,
    budget: Budget | None = None,
    mode: str = "graph",
    input_shapes: Shapes | None = None,
    example: Any = None,
    optimizer: keras.Optimizer | str | None = None,
    loss: Any = None,
    confirm: bool | str | Callable[[], keras.Model] = False,
    verbose: int = 1,
    **options: Any,
) -> Plan:
    """Choose what to keep and what to recompute when `model` trains.

    The training step is traced, once, and planned by its operations: with the loss, metrics and optimizer that the
    model is compiled with, or those that are given; without either as one call of the model and its gradients, as in a
    loop of your own.

    Args:
        model: Any `keras.Model`. One that is neither Sequential nor functional takes an `example`.
        batch_size: Samples in a training batch. Needed for a budget; else bytes are of one sample.
        strategy: A name from `tfgc.strategies.available()`, or a function `plan(graph, **options) -> Plan`. Default:
            `budget` if there is a budget, else `optimal`, the least peak.
        budget: Bytes that the whole step may use on the device: weights, their gradients, optimizer slots and
            activations (`needed_bytes` of `tfgc.estimate`), whatever the strategy. A number or "4GB", of which 30 % of
            what a step makes are left for what an allocator adds; "60%" or 0.6 of the plain step's, as simulated; or
            "auto": 90 % of what is free now on the first GPU, or else in the machine or container, and what the
            model's variables hold already.
        mode: How the step will run: `graph` or `xla`, as for `tfgc.estimate`.
        input_shapes: Mapping from input names to shapes without the batch, where
            the model leaves a dimension (sequence length, image size) open.
        example: A batch of inputs (or a tuple of inputs and targets) that
            answers both of the above: arrays, tensors, or a `tf.TensorSpec` or `keras.KerasTensor` of each. A
            subclassed model is planned by the operations of its step if there are targets; those of others are else
            taken to be of the shapes of the outputs, or classes.
        optimizer: A `keras.Optimizer` or its name. Default: the one that the model is compiled with, else two slots
            for each weight are counted, as Adam has.
        loss: What `model.compile` takes for one loss. Default: the one that the model is compiled with, else the mean
            of its outputs.
        confirm: Whether to run five steps by the plan in a child process, and to compare what TensorFlow's allocator
            reports with the prediction. Where a budget is missed, or more than 5 % of it are left, the next plan is
            chosen by the ratio of measured to predicted bytes, as in training: at most four are run. `plan.explain()`
            says what was measured, and the ratio is saved with the plan. A model
            that Keras cannot serialize is built there by a function: `confirm=build`.
            With `mode="xla"`, the name of a GPU that is not there, as for `tfgc.compiled_memory`: plans are compiled
            for it instead of being run, and a share as budget is one of the compiled plain step.
        verbose: 1: say on standard error what goes on where that takes longer than two seconds, and show progress of
            `confirm`. 0: nothing.
        **options: Options of the strategy, such as `segments=8` (uniform, sqrt) or `keep=["conv2"]` (manual).

    Returns:
        A `tfgc.Plan`: data to print, save, and give to `tfgc.enable`.

    Raises:
        InfeasibleBudgetError: If nothing fits in the budget; with `confirm`, if nothing was measured to.
        UnsupportedModelError: If a Sequential model is not built, or another one cannot be traced symbolically, or
            cannot be sent to a child process.
        OptionError: For an unknown strategy or option, sizes that are open, or a missing `example`.
        TfgcError: If the step that is to confirm the plan cannot be run.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
        >>> plan = tfgc.plan(model, batch_size=32, strategy="uniform", segments=2)
        >>> [len(segment.nodes) for segment in plan.segments]
        [3, 5]
    """
    shown = _progress.check_verbose(verbose)
    check_model(model)
    asked = MeasuredStep(
        model, batch_size,
        {"mode": mode, "input_shapes": input_shapes, "example": example, "optimizer": optimizer,
         "loss": loss},
        {"strategy": strategy, **options},
        confirm,
    )  # fmt: skip
    planning = f"planning {model.name!r}"
    if confirm is False:
        with _progress.patient(planning, shown):
            return asked.plan(budget)
    _check(confirm, mode)
    if budget is None:
        with _progress.patient(planning, shown):
            made = asked.plan(None)
            step = asked.predict(made)
        with _progress.bar(model.name, 1, "plans", shown) as runs:
            return _noted(made, Confirmation(asked.measure(made, step, runs), step.needed_bytes, target=asked.target))
    total = budgets.budget_bytes(budget, asked.plain_bytes, budgets.resident_bytes(model))
    with _progress.bar(model.name, MOST_CHANGES + 1, "plans at most", shown) as runs:
        made, found, ratio = within_budget(asked, total, runs)
    made = _noted(made, found)
    return dataclasses.replace(made, outlook=made.outlook and made.outlook.by_ratio(ratio))


def _check(confirm: Any, mode: str) -> None:
    if isinstance(confirm, str):
        targets.find(confirm)
        targets.check_mode(f"confirm={confirm!r}", mode)
        compiler.check_installed()
    elif confirm is not True and not callable(confirm):
        raise OptionError(
            f"confirm={confirm!r}: must be True, False, a function that builds the model, or the name of a GPU"
        )
    elif mode == "xla" and not tf.config.list_physical_devices("GPU"):
        raise OptionError(
            f"{shipped.label(confirm)}: mode='xla' predicts steps on a GPU, and this machine has none. Name a GPU to "
            'compile the plans for it instead: confirm="h100"'
        )


def _noted(plan: Plan, found: Confirmation) -> Plan:
    """The plan, which says what was measured in place of what was predicted."""
    outlook = plan.outlook
    assert outlook is not None, "a step that was measured has sizes"
    outlook = dataclasses.replace(outlook, needed_bytes=found.measured_bytes, budget_bytes=found.budget_bytes)
    return dataclasses.replace(plan, options={**plan.options, **found.options()}, outlook=outlook)
