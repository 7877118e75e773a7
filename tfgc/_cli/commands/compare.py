"""`tfgc compare`: memory and time against a plain GradientTape."""

import click

from tfgc._cli import choices, options


@click.command("compare", cls=options.Command)
@options.network_options
@click.option(
    "--strategy",
    callback=options.parsed(options.names),
    help="Comma-separated strategies; sqrt:8 means sqrt with 8 segments.  "
    "[default: none with a plan, budget with a budget, else sqrt]",
)
@click.option("--plan", "plan_paths", multiple=True, type=options.INPUT, help="Measure this plan file; repeatable.")
@click.option("--budget", help="Memory for the whole step, for strategies that take a budget.")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(["compiled", "graph", "xla"]),
    default=("compiled", "graph"),
    show_default=True,
    help="How planned steps run; repeatable.",
)
@click.option("--steps", type=options.COUNT, default=5, show_default=True, help="Measured steps, and turns, per case.")
@click.option("--plot", "plot_path", type=options.PICTURE, help="Plot memory over time to this PNG file.")
@options.json_option
def command(
    network: choices.NetworkChoice,
    strategy: tuple[str, ...] | None,
    plan_paths: tuple[str, ...],
    budget: str | None,
    modes: tuple[str, ...],
    steps: int,
    plot_path: str | None,
    json_path: str | None,
) -> None:
    """Measure memory and time of training with and without tfgc.

    NAME is trained plainly, with a GradientTape, and by plans. Memory is measured in a separate process for each case:
    plain-eager, plain-graph, and each strategy and plan in each mode: in a loop with compiled segments ("compiled"), in
    tf.function ("graph"), or compiled as a whole, beside plain-xla ("xla"). Then all cases are timed in one process, a
    step each in turn. A case that runs out of memory is reported as "oom". `tfgc report` reads the JSON file, which
    also holds the predicted Pareto front.
    """
    from tfgc._measure import case_choice, compare
    from tfgc._records import measurement
    from tfgc._report import command_tables, plots, study_tables, svg

    cases = case_choice.plan_cases(
        network.name,
        network.batch_size,
        strategy,
        steps=steps,
        plans=plan_paths,
        budget=budget,
        modes=modes,
        **network.sizes(),
    )
    if plot_path:
        svg.require("a plot", "plot")
    study = compare.study(cases, front=bool(json_path), marks=(budget,) if budget else ())
    if not options.emit_json(measurement.Results((study,), options.this_command()), json_path):
        command_tables.print_table(command_tables.comparison(study.records))
        losses = study_tables.losses(study)
        if losses is not None:
            command_tables.print_table(losses)
    if plot_path:
        plot = plots.memory(study)
        if plot is not None:
            svg.write_png(plot, plot_path)
        else:
            options.echo(f"No plot was written to {plot_path!r}: no case finished.", err=True)
    compare.check_measured(study)
