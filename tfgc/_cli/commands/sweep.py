"""`tfgc sweep`: the least overhead for each peak."""

import click

from tfgc._cli import options as shared
from tfgc._errors import OptionError


@click.command("sweep", cls=shared.Command)
@shared.model_options
@click.option("--budget", help="Mark the plan with the least overhead within this budget.")
@click.option("--budgets", help="Comma-separated budgets; show the plan that each one buys.")
@click.option("--points", type=int, default=12, show_default=True, help="Number of plans to show.")
@click.option("--plan", "plan_paths", multiple=True, type=shared.INPUT, help="Also show this plan file; repeatable.")
@shared.cost_options
@click.option("--plot", "plot_path", type=shared.PICTURE, help="Plot overhead against peak memory to this PNG file.")
@shared.json_option
def command(
    name, batch_size, image_size, inputs, budget, budgets, points, plan_paths, measure, optimizer, plot_path, json_path
):  # fmt: skip
    """Print the Pareto front of training NAME: the least overhead for each peak.

    From the lowest reachable peak to the plain step. Predicted; nothing is trained. `tfgc report` reads the JSON
    file.
    """
    from tfgc._core import plan
    from tfgc._records import measurement
    from tfgc._report import comparison, fronts

    plans = [(path, plan.read(path)) for path in plan_paths]
    listed = [word.strip() for word in (budgets or "").split(",") if word.strip()]
    if budgets is not None and not listed:
        raise OptionError(f"--budgets {budgets!r}: name budgets, such as 1GB,2GB,60%")
    if plot_path:
        comparison.require_matplotlib()
    with shared.warnings_in_a_line():
        model, sizes = shared.open_model(name, image_size, inputs)
        from tfgc._planning import sweep

        front = sweep.sweep(
            model,
            name,
            batch_size,
            points=points,
            budgets=list(dict.fromkeys([*listed, *([budget] if budget else [])])),
            plans=plans,
            input_shapes=sizes,
            measure=measure,
            optimizer=optimizer,
        )
    if plot_path:
        fronts.plot(front, plot_path)
    study = measurement.Study(name, batch_size, front=front)
    if shared.emit_json(measurement.Results((study,), shared.this_command()), json_path):
        return
    comparison.print_table(fronts.table(front))
    if front.choices:
        comparison.print_table(fronts.budgets(front))
