"""`tfgc explain`: say what a plan does, segment by segment."""

import dataclasses
import json

import click

from tfgc._cli import options as shared


@click.command("explain", cls=shared.Command)
@shared.model_options
@shared.plan_options
@shared.cost_options
@click.option("--plan", "plan_path", type=shared.INPUT, help="Plan file to use instead of planning options.")
@shared.json_option
def command(name, batch_size, image_size, inputs, budget, strategy, options, measure, optimizer, plan_path, json_path):
    """Show, segment by segment, what a plan stores, what it recomputes, why, and what that costs.

    The JSON output is the plan itself, including these figures.
    """
    read = shared.read_plan(plan_path, budget, strategy, options)
    with shared.warnings_in_a_line():
        model, sizes = shared.open_model(name, image_size, inputs)
        common = {"input_shapes": sizes, "measure": measure}
        if read is None:
            made = shared.make_plan(model, batch_size, budget, strategy, options, optimizer=optimizer, **common)
        else:
            made = _judged(model, batch_size, read, **common)
    if not shared.emit_json(json.loads(made.to_json()), json_path):
        click.echo(made.explain())


def _judged(model, batch_size, plan, *, input_shapes, measure):
    """A saved plan with its figures for this batch."""
    from tfgc._planning import annotated
    from tfgc._simulate import outlooks
    from tfgc._tracing import keras_graph

    plan.check(keras_graph.read(model))
    whole_step = plan.outlook is not None and plan.outlook.whole_step
    graph = annotated.graph_of(model, batch_size, input_shapes, None, measure=measure, whole_step=whole_step)
    return outlooks.with_outlook(graph, dataclasses.replace(plan, batch_size=graph.batch_size))
