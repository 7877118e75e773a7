"""Why the best plan saves next to nothing, and what would help."""

from tfgc._core.plan import Plan
from tfgc._simulate.simulator import Prediction
from tfgc._units import format_bytes

# The least part of the plain step's peak for which a plan that nobody asked for by name is worth its replays.
_LEAST_GAIN = 0.05


def reason(plan: Plan, step: Prediction, plain: Prediction) -> str | None:
    """Why the best plan does not need much less than the plain step, and what would; None if it does."""
    if step.needed_bytes <= (1 - _LEAST_GAIN) * plain.needed_bytes:
        return None
    whole, constant = plain.needed_bytes, plain.peak_bytes - plain.activation_bytes
    if constant > whole / 2:
        return (
            f"weights, their gradients and optimizer slots are {format_bytes(constant)} of {format_bytes(whole)}, "
            "which no plan reduces. A larger batch, mixed precision or an optimizer with fewer slots shifts that"
        )
    kept = max(
        (segment for segment in plan.segments if segment.obstacle),
        key=lambda segment: segment.inside_bytes or 0,
        default=None,
    )
    if kept is not None and (kept.inside_bytes or 0) > plain.activation_bytes / 2:
        return f"{kept} has to be kept: {kept.obstacle}"
    outlook = plan.outlook
    if outlook is not None and outlook.floor_bytes > 0.9 * outlook.plain_bytes:
        what = "the outputs and their loss" if outlook.floor_node == plan.segments[-1].nodes[-1] else "one layer"
        needs = f"needs {format_bytes(outlook.floor_bytes)} of {format_bytes(outlook.plain_bytes)} by itself"
        text = f"{what} ({outlook.floor_node!r}) {needs}, activations and workspace"
        return f"{text}. A smaller batch helps"
    return "no known plan needs less. A smaller batch helps"
