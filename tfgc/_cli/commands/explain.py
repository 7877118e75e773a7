"""`tfgc explain`: say what a plan does, segment by segment."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from tfgc._cli import options, values

if TYPE_CHECKING:
    import keras

    from tfgc._core.plan import Plan


@click.command("explain", cls=options.Command)
@options.model_options
@options.plan_options
@options.cost_options
@click.option("--plan", "plan_path", type=options.INPUT, help="Plan file to use instead of planning options.")
@options.json_option
def command(
    name: str,
    batch_size: int,
    image_size: int | None,
    inputs: values.Shapes,
    budget: str | None,
    strategy: str | None,
    strategy_options: values.Settings,
    measure: bool,
    optimizer: str | None,
    plan_path: str | None,
    json_path: str | None,
) -> None:
    """Show, segment by segment, what a plan stores, what it recomputes, why, and what that costs.

    The JSON output is the plan itself, including these figures.
    """
    read = options.read_plan(plan_path, budget, strategy, strategy_options)
    with options.warnings_in_a_line():
        model, sizes = options.open_model(name, image_size, inputs)
        common = {"input_shapes": sizes, "measure": measure}
        if read is None:
            made = options.make_plan(
                model, batch_size, budget, strategy, strategy_options, optimizer=optimizer, **common
            )
        else:
            made = _with_figures(model, batch_size, read, **common)
    if not options.emit_json(json.loads(made.to_json()), json_path):
        click.echo(made.explain())


def _with_figures(
    model: keras.Model, batch_size: int, plan: Plan, *, input_shapes: dict[str, tuple[int, ...]] | None, measure: bool
) -> Plan:
    """A saved plan with its figures for this batch."""
    from tfgc._planning import annotated
    from tfgc._simulate import outlooks
    from tfgc._tracing import keras_graph

    plan.check(keras_graph.read(model))
    whole_step = plan.outlook is not None and plan.outlook.whole_step
    graph = annotated.graph_of(model, batch_size, input_shapes, None, measure=measure, whole_step=whole_step)
    return outlooks.with_outlook(graph, dataclasses.replace(plan, batch_size=graph.batch_size))
