"""What `enable` says of a plan when it is made."""

from tfgc._core.plan import Plan
from tfgc._planning.first_batch import PlannedStep
from tfgc._units import format_bytes, format_seconds


def line(name: str, made: PlannedStep) -> str:
    """The strategy, the predicted peak against plain, the overhead, and how long planning took.

    Example:
        >>> from tfgc import Plan
        >>> print(line("net", PlannedStep(Plan((), "sqrt", ()), "graph", 8, 4_000_000, 8_000_000, 0.25, 1.2)))
        tfgc: 'net' by 'sqrt': 4 MB predicted for a step (50 % of 8 MB), 25 % more work, batch of 8, planned in 1.2 s
    """
    words = [f"tfgc: {name!r} by {made.plan.strategy!r}: {promise(made.plan, made.predicted_bytes, made.plain_bytes)}"]
    if made.overhead is not None:
        words.append(f"{100 * made.overhead:.0f} % more work" if made.overhead else "nothing recomputed")
    words.append("batch size unknown" if made.batch_size is None else f"batch of {made.batch_size}")
    words.append(f"planned in {format_seconds(made.seconds)}")
    return ", ".join(words)


def promise(plan: Plan, predicted_bytes: int | None, plain_bytes: int | None) -> str:
    """The predicted peak of the step; the share of activations where bytes are unknown."""
    if predicted_bytes is not None and plain_bytes is not None:
        share = 100 * predicted_bytes / plain_bytes
        return f"{format_bytes(predicted_bytes)} predicted for a step ({share:.0f} % of {format_bytes(plain_bytes)})"
    outlook = plan.outlook
    if outlook is None:
        return "nothing predicted, sizes are open"
    return f"{100 * (1 - outlook.cut_off):.0f} % of the plain step's activations predicted"


def nothing_saved(name: str, made: PlannedStep) -> str:
    """Why a model runs as before."""
    return f"{name!r} trains as before, since recomputing would save less than 5 % of a step: {made.unchanged}"
