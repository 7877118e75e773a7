"""What a budget comes to in bytes, and what of it weights and optimizer slots take."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import keras

from tfgc._errors import InfeasibleBudgetError, OptionError
from tfgc._framework import isolated_traces, keras_names
from tfgc._planning import free_memory, slot_bytes
from tfgc._planning.slot_bytes import variable_bytes
from tfgc._units import check_budget, format_percent, is_auto, parse_bytes

# Bytes, "4GB", "70%" or 0.7 of the plain step's peak, or "auto".
Budget = int | float | str
# The share of free memory that is left for fragmentation, and for what else the process holds.
MARGIN = 0.1


def fixed_bytes(model: keras.Model, optimizer: keras.Optimizer | str | None = None) -> int:
    """Bytes of weights and optimizer slots, which stay in memory during all of training.

    The optimizer is by default the one that the model is compiled with, or else one with two slots for each weight, as
    Adam has. So many are assumed as well for one that is not built and cannot be made again from its config.
    """
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None) or "adam"
    # A `tf.function` that is traced meanwhile may make no variables.
    slots = isolated_traces.in_own_thread(functools.partial(_slot_bytes, optimizer, model.trainable_variables))
    return variable_bytes(model.weights) + slots


def _slot_bytes(optimizer: keras.Optimizer | str, trained: Sequence[keras.Variable]) -> int:
    chosen = keras_names.optimizer(optimizer)
    return variable_bytes(chosen.variables) if chosen.built else slot_bytes.of(chosen, trained)


def budget_bytes(budget: Budget, plain: Callable[[], int] | None, resident: int = 0) -> int:
    """A budget of the whole step, in bytes; `plain` says what the plain step needs, None where there can be no share.

    Weights and slots that are `resident` in memory already are not free, but part of what the step uses.
    """
    if is_auto(budget):
        return int(free_memory.free_bytes() * (1 - MARGIN)) + resident
    share = check_budget(budget)
    if share is None:
        return parse_bytes(budget)
    if plain is None:
        raise OptionError(f"budget={budget!r}: give bytes; there is no plain step here that it could be a share of")
    return int(share * plain())


@contextlib.contextmanager
def explained(budget: Budget | None) -> Iterator[None]:
    """Plan for a budget in here; if it is a share of the plain step, an error names the least share that works."""
    try:
        yield
    except InfeasibleBudgetError as error:
        share = None if budget is None else check_budget(budget)
        if share is None:
            raise
        also = f", {format_percent(share, '.0f')} of the plain step"
        least = math.ceil(share * error.least / error.budget * 100) / 100 if error.budget else 1.0
        plainly = "the model as it is, since no plan needs less than its plain step"
        instead = f"at least {format_percent(least, '.0f')}" if least < 1 else plainly
        raise InfeasibleBudgetError(error.budget, error.least, error.node, also, instead) from None


def resident_bytes(model: keras.Model) -> int:
    """Bytes of a model's variables, and of the slots of its optimizer, that are in memory now."""
    optimizer = getattr(model, "optimizer", None)
    slots = [] if optimizer is None or not optimizer.built else optimizer.variables
    return variable_bytes([*model.variables, *slots])
