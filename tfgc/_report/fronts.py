"""Render plans: one in a few lines, and the Pareto front as a table. No TensorFlow."""

import dataclasses
from typing import Any

from tfgc._core import confirmation
from tfgc._core.plan import Plan
from tfgc._records.front import FrontPoint, FrontRecord
from tfgc._records.table import TextTable
from tfgc._simulate.simulator import Prediction
from tfgc._units import format_bytes, format_needs, format_percent

HEADS = ("plan", "needs", "of plain", "overhead", "segments", "nested")


def facts(network: str, plan: Plan, step: Prediction) -> dict[str, Any]:
    """The figures of a plan: its outlook, and what is predicted of its whole step."""
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
        "fixed_bytes": step.fixed_bytes,
        "host_bytes": step.host_bytes,
    }


def summary(facts: dict[str, Any]) -> list[str]:
    """A few lines about one plan, from its `facts`."""
    needs = format_needs(facts["needed_bytes"], facts["plain_needed_bytes"], facts["budget_bytes"])
    count, nested = facts["segments"], ", nested" if facts["nested"] else ""
    confirmed = confirmation.of(facts["options"])
    lines = [
        f"{facts['network']}, batch {facts['batch_size']}: {facts['strategy']}, {count} segment{'s' * (count > 1)}, "
        f"{facts['recomputed']} recomputed{nested}",
        f"  {needs}",
        f"  overhead    {format_percent(facts['overhead'])} more work, in flops",
    ]
    if confirmed is not None:
        lines.append(f"  confirmed   {confirmed}")
    if facts["host_bytes"]:
        lines.append(f"  on the host {format_bytes(facts['host_bytes'])} at most, if the device is an accelerator")
    return lines


def rows(front: FrontRecord) -> list[list[str]]:
    """The cells of the front's table, as text, by what the plans need: a list of rows."""
    chosen: dict[FrontPoint | None, list[str]] = {}
    for choice in front.choices:
        chosen.setdefault(choice.point, []).append(choice.budget)
    ordered = sorted([*front.points, *front.others], key=lambda p: (_needs(p), -p.overhead))
    cells = []
    for i, point in enumerate(ordered, start=1):
        bought = f"bought by {', '.join(chosen[point])}" if point in chosen else ""
        cells.append([f"{point.name} {bought}".strip() or f"plan {i}", *_figures(point, front)])
    return cells


def _needs(point: FrontPoint) -> int:
    """What the whole step needs; in files of older versions, as the allocator should report it."""
    return point.allocated_bytes if point.needed_bytes is None else point.needed_bytes


def _figures(point: FrontPoint, front: FrontRecord) -> list[str]:
    """The cells of a plan, without its name."""
    return [
        format_bytes(_needs(point)),
        format_percent(_needs(point) / _needs(front.points[-1])),
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
        bought = ["infeasible", *[""] * (len(HEADS) - 2)] if choice.point is None else _figures(choice.point, front)
        cells.append([choice.budget, format_bytes(choice.budget_bytes), *bought])
    return TextTable("What each budget buys", ("budget", "bytes", *HEADS[1:]), cells, caption)


def _legend(front: FrontRecord) -> str:
    work = "seconds" if front.unit == "s" else "floating-point operations"
    return (
        f"needs: what the whole step has on the device, {format_bytes(front.fixed_bytes)} of weights and optimizer "
        "slots included, which a budget is compared with. of plain: of what the plain step needs. overhead: extra "
        f"work, in {work}. nested: a replay is split again. {front.floor_node} sets the least that a plan may need."
    )
