"""`tfgc plan`: choose what to keep and what to recompute."""

import functools

import click

from tfgc._cli import choices, options


@click.command("plan", cls=options.Command)
@options.network_options
@options.plan_options
@options.cost_options
@click.option(
    "--confirm", is_flag=True,
    help="Run the plan in a child process, and correct it where TensorFlow's allocator reports more than the budget.",
)  # fmt: skip
@click.option(
    "--target", metavar="GPU",
    help="With --mode xla, compile the plan for this GPU, which need not be there, instead of running it: h100, a100, "
    "a100_40gb, l4, t4 or v100.",
)  # fmt: skip
@click.option("-o", "--output", type=options.OUTPUT, help="Write the plan to this file.")
@options.json_option
def command(
    network: choices.NetworkChoice,
    planning: choices.PlanChoice,
    costs: choices.Costs,
    confirm: bool,
    target: str | None,
    output: str | None,
    json_path: str | None,
) -> None:
    """Choose what to keep and what to recompute when NAME trains.

    With --budget, the fastest plan that fits; otherwise the plan with the lowest peak. Memory and
    work are predicted; nothing is trained unless --confirm is given, or compiled without --target.
    """
    from tfgc._compiled import targets
    from tfgc._report import fronts

    if target is not None:
        targets.find(target)
        targets.check_mode(f"--target {target}", costs["mode"])
    with choices.warnings_in_a_line():
        model, given = network.open()
        from tfgc import zoo
        from tfgc._planning import estimates

        common = {**given, **costs}
        build = functools.partial(zoo.build, network.name, network.image_size) if confirm else False
        made = planning.make(model, network.batch_size, confirm=target or build, **common)
        step = estimates.estimate(model, network.batch_size, made, **common)
    facts = fronts.facts(network.name, made, step)
    if output:
        made.save(output)
    if options.emit_json(facts, json_path):
        return
    for line in fronts.summary(facts):
        options.echo(line)
    if output:
        options.echo(f"  written to  {output}")
