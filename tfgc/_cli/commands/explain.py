"""`tfgc explain`: say what a plan does, segment by segment."""

import json

import click

from tfgc._cli import choices, options


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
        from tfgc._planning import ahead

        if read is None:
            made = planning.make(model, network.batch_size, **given, **costs)
        else:
            made = ahead.plans_for(model, network.batch_size, **given, **costs).with_figures(read)
    if not options.emit_json(json.loads(made.to_json()), json_path):
        options.echo(made.explain())
