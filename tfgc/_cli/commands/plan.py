"""`tfgc plan`: choose what to keep and what to recompute."""

import click

from tfgc import _files
from tfgc._cli import options as shared


@click.command("plan", cls=shared.Command)
@shared.model_options
@shared.plan_options
@shared.cost_options
@click.option("-o", "--output", type=shared.OUTPUT, help="Write the plan to this file.")
@shared.json_option
def command(name, batch_size, image_size, inputs, budget, strategy, options, measure, optimizer, output, json_path):
    """Choose what to keep and what to recompute when NAME trains.

    With --budget, the fastest plan that fits; otherwise the plan with the lowest peak. Memory and
    work are predicted; nothing is trained.
    """
    from tfgc._report import fronts

    with shared.warnings_in_a_line():
        model, sizes = shared.open_model(name, image_size, inputs)
        from tfgc._planning import planner

        common = {"input_shapes": sizes, "measure": measure, "optimizer": optimizer}
        made = shared.make_plan(model, batch_size, budget, strategy, options, **common)
        step, plain = (planner.estimate(model, batch_size, which, **common) for which in (made, None))
    facts = fronts.facts(name, made, step, plain)
    if output:
        _files.write(output, made.to_json())
    if shared.emit_json(facts, json_path):
        return
    for line in fronts.summary(facts):
        click.echo(line)
    if output:
        click.echo(f"  written to  {output}")
