"""`tfgc sweep`: the least overhead for each peak."""

import click

from tfgc._cli import options as shared
from tfgc._errors import OptionError


@click.command("sweep", cls=shared.Command)
@shared.model_options
@click.option("--budget", help="Mark the plan of least overhead in this budget.")
@click.option("--budgets", help="Budgets, separated by commas: tell what each of them buys.")
@click.option("--points", type=int, default=12, show_default=True, help="Plans of the front to tell of.")
@click.option("--plan", "plan_paths", multiple=True, type=shared.INPUT, help="Tell of this plan file too; repeatable.")
@shared.cost_options
@click.option("--plot", "plot_path", type=shared.PICTURE, help="Draw overhead over peak into this PNG.")
@shared.json_option
def command(
    name, batch_size, image_size, inputs, budget, budgets, points, plan_paths, measure, optimizer, plot_path, json_path
):  # fmt: skip
    """Print the least overhead for each peak of training NAME.

    From the least peak that can be reached to the plain step. Predicted; nothing is trained. The JSON file
    is one that `tfgc report` reads.
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
