"""`tfgc explain`: say what a plan does, segment by segment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tfgc._cli import choices, options

if TYPE_CHECKING:
    import keras

    from tfgc._core.plan import Plan


@click.command("explain", cls=options.Command)
@options.network_options
@options.plan_or_options
@options.cost_options
@options.json_option
def command(
    network: choices.NetworkChoice, planning: choices.PlanChoice, costs: choices.Costs, json_path: str | None
) -> None:
    """Show what a plan stores and recomputes, and what it costs.

    The table has a row for each segment. The JSON output is the plan itself, including these figures.
    """
    read = planning.read()
    with choices.warnings_in_a_line():
        model, given = network.open()
        if read is None:
            made = planning.make(model, network.batch_size, **given, **costs)
        else:
            made = _with_figures(model, network.batch_size, read, costs, **given)
    if not options.emit_json(json.loads(made.to_json()), json_path):
        options.echo(made.explain())


def _with_figures(
    model: keras.Model,
    batch_size: int,
    plan: Plan,
    costs: choices.Costs,
    *,
    input_shapes: dict[str, tuple[int, ...]] | None,
    example: Any = None,
) -> Plan:
    """A saved plan with its figures for this batch."""
    from tfgc._planning import ahead

    plans = ahead.plans_for(model, batch_size, example, costs["mode"], input_shapes, optimizer=costs["optimizer"])
    return plans.with_figures(plan)
