"""`tfgc sweep`: the least overhead for each peak."""

import click

from tfgc._cli import choices, options
from tfgc._errors import OptionError
from tfgc._units import check_budget


@click.command("sweep", cls=options.Command)
@options.network_options
@click.option("--budget", help="Mark the plan with the least overhead within this budget.")
@click.option(
    "--budgets", callback=options.parsed(options.names),
    help="Comma-separated budgets; show the plan that each one buys.",
)  # fmt: skip
@click.option("--points", type=click.IntRange(min=2), default=12, show_default=True, help="Number of plans to show.")
@click.option("--plan", "plan_paths", multiple=True, type=options.INPUT, help="Also show this plan file; repeatable.")
@options.cost_options
@click.option("--plot", "plot_path", type=options.PICTURE, help="Plot overhead against peak memory to this PNG file.")
@options.json_option
def command(
    network: choices.NetworkChoice,
    budget: str | None,
    budgets: tuple[str, ...] | None,
    points: int,
    plan_paths: tuple[str, ...],
    costs: choices.Costs,
    plot_path: str | None,
    json_path: str | None,
) -> None:
    """Print the Pareto front: the least overhead for each peak.

    The plans for NAME range from the lowest reachable peak to the plain step. They are predicted; nothing is trained.
    `tfgc report` reads the JSON file.
    """
    from tfgc._core.plan import Plan
    from tfgc._records import measurement
    from tfgc._report import command_tables, fronts, plots, svg

    plans = [(path, Plan.load(path)) for path in plan_paths]
    if budgets == ():
        raise OptionError("--budgets: name budgets, such as 1GB,2GB,60%")
    budgets = tuple(dict.fromkeys([*(budgets or ()), *([budget] if budget else [])]))
    for one in budgets:
        check_budget(one)
    if plot_path:
        svg.require("a plot", "plot")
    with choices.warnings_in_a_line():
        model, given = network.open()
        from tfgc._planning import sweep

        front = sweep.sweep(
            model,
            network.name,
            network.batch_size,
            points=points,
            budgets=budgets,
            plans=plans,
            **given,
            **costs,
        )
    study = measurement.Study(network.name, network.batch_size, front=front)
    if plot_path:
        plot = plots.front(study)
        assert plot is not None, "a front has points"
        svg.write_png(plot, plot_path)
    if options.emit_json(measurement.Results((study,), options.this_command()), json_path):
        return
    command_tables.print_table(fronts.table(front))
    if front.choices:
        command_tables.print_table(fronts.budgets(front))
