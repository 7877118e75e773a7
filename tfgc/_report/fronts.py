"""Render plans: one in a few lines, and the Pareto front as a table. No TensorFlow."""

import dataclasses
from typing import Any

from tfgc._core import confirmation
from tfgc._core.plan import Plan
from tfgc._records.front import FrontPoint, FrontRecord
from tfgc._records.table import TextTable
from tfgc._simulate.simulator import Prediction
from tfgc._units import format_bytes, format_percent

HEADS = ("plan", "peak", "needed", "activations", "cut-off", "overhead", "segments", "nested")


def facts(network: str, plan: Plan, step: Prediction, plain: Prediction) -> dict[str, Any]:
    """The figures of a plan: its outlook and its predicted whole step, and the plain step's."""
    assert plan.outlook is not None
    return {
        "network": network,
        "batch_size": plan.batch_size,
        "strategy": plan.strategy,
        "options": plan.options,
        "segments": len(plan.segments),
        "recomputed": sum(segment.mode == "recompute" for segment in plan.segments),
        "nested": plan.is_nested,
        **dataclasses.asdict(plan.outlook),
        "cut_off": plan.outlook.cut_off,
        "gap": plan.outlook.gap,
        "step_bytes": step.peak_bytes,
        "plain_step_bytes": plain.peak_bytes,
        "fixed_bytes": step.fixed_bytes,
        "allocated_bytes": step.allocated_bytes,
        "host_bytes": step.host_bytes,
    }


def summary(facts: dict[str, Any]) -> list[str]:
    """A few lines about one plan, from its `facts`."""
    size = {key: format_bytes(value) for key, value in facts.items() if key.endswith("_bytes")}
    count, nested = facts["segments"], ", nested" if facts["nested"] else ""
    left_out = "weights and slots" if facts["whole_step"] else "weights, their gradients and slots"
    seconds = "seconds" if facts["unit"] == "s" else "flops"
    gap = f"{format_percent(abs(facts['gap']))} {'above' if facts['gap'] >= 0 else 'below'}"  # slices may go below
    confirmed = confirmation.of(facts["options"])
    lines = [
        f"{facts['network']}, batch {facts['batch_size']}: {facts['strategy']}, {count} segment{'s' * (count > 1)}, "
        f"{facts['recomputed']} recomputed{nested}",
        f"  peak        {size['peak_bytes']} of {size['plain_bytes']}, cut-off {format_percent(facts['cut_off'])} "
        f"({left_out} left out)",
        f"  floor       {size['floor_bytes']}, set by {facts['floor_node']}; this plan is {gap}",
        f"  overhead    {format_percent(facts['overhead'])} more work, in {seconds}; no plan of this peak has less "
        f"than {format_percent(facts['least_overhead'])}",
        f"  whole step  {size['step_bytes']} with weights and slots, {size['allocated_bytes']} in the allocator's "
        f"chunks; plain {size['plain_step_bytes']}",
    ]
    if confirmed is not None:
        lines.append(f"  confirmed   {confirmed}")
    if facts["host_bytes"]:
        lines.append(f"  on the host {size['host_bytes']} at most, if the device is an accelerator")
    return lines


def rows(front: FrontRecord) -> list[list[str]]:
    """The cells of the front's table, as text, by rising peak: a list of rows."""
    chosen: dict[FrontPoint | None, list[str]] = {}
    for choice in front.choices:
        chosen.setdefault(choice.point, []).append(choice.budget)
    ordered = sorted([*front.points, *front.others], key=lambda p: (p.peak_bytes, -p.overhead))
    cells = []
    for i, point in enumerate(ordered, start=1):
        bought = f"bought by {', '.join(chosen[point])}" if point in chosen else ""
        cells.append([f"{point.name} {bought}".strip() or f"plan {i}", *_figures(point)])
    return cells


def _figures(point: FrontPoint) -> list[str]:
    """The cells of a plan, without its name."""
    return [
        format_bytes(point.peak_bytes),
        "" if point.needed_bytes is None else format_bytes(point.needed_bytes),
        format_bytes(point.activation_bytes),
        format_percent(point.cut_off),
        format_percent(point.overhead),
        str(point.segments),
        "yes" if point.nested else "",
    ]


def table(front: FrontRecord) -> TextTable:
    """The table of the Pareto front, a row a plan."""
    title = f"{front.network}, batch {front.batch_size}: least overhead for each peak"
    return TextTable(title, HEADS, rows(front), _legend(front))


def budgets(front: FrontRecord) -> TextTable:
    """The table of the plan that each budget buys."""
    least = {choice.least_bytes for choice in front.choices} - {None}
    caption = f"The smallest budget that works is {least.pop():,} bytes." if least else ""
    cells = []
    for choice in front.choices:
        bought = ["infeasible", *[""] * (len(HEADS) - 2)] if choice.point is None else _figures(choice.point)
        cells.append([choice.budget, format_bytes(choice.budget_bytes), *bought])
    return TextTable("What each budget buys", ("budget", "bytes", *HEADS[1:]), cells, caption)


def _legend(front: FrontRecord) -> str:
    work = "seconds" if front.unit == "s" else "floating-point operations"
    return (
        f"peak: most bytes at once in the whole step, {format_bytes(front.fixed_bytes)} of weights and optimizer slots "
        "included. needed: what TensorFlow's allocator should take for it, and a reserve, which a budget is compared "
        "with. activations: their own peak, without gradients of weights. cut-off: the part of the plain step's "
        f"peak above weights and slots that is saved. overhead: extra work, in {work}. nested: a replay "
        f"is split again. No plan of the front goes below {format_bytes(front.floor_bytes)}, set by {front.floor_node}."
    )
