"""`tfgc compare`: memory and time against a plain GradientTape."""

import click

from tfgc._cli import options as shared
from tfgc._errors import TfgcError


@click.command("compare", cls=shared.Command)
@shared.model_options
@click.option(
    "--strategy",
    help="Comma-separated strategies; sqrt:8 means sqrt with 8 segments.  "
    "[default: none with a plan, budget with a budget, else sqrt]",
)
@click.option("--plan", "plan_paths", multiple=True, type=shared.INPUT, help="Measure this plan file; repeatable.")
@click.option("--budget", help="Memory for the whole step, for strategies that take a budget.")
@click.option("--steps", type=int, default=5, show_default=True, help="Measured steps per case.")
@click.option("--plot", "plot_path", type=shared.PICTURE, help="Plot memory over time to this PNG file.")
@shared.json_option
def command(name, batch_size, image_size, inputs, strategy, plan_paths, budget, steps, plot_path, json_path):
    """Measure memory and time of training NAME against a plain GradientTape.

    The cases run one after the other, each in a separate process: plain-eager, plain-graph, and each
    strategy and plan twice, with compiled segments ("compiled") and in tf.function ("graph"). A case that
    runs out of memory is reported as "oom". `tfgc report` reads the JSON file, which also holds the
    predicted Pareto front.
    """
    from tfgc._measure import compare
    from tfgc._records import measurement
    from tfgc._report import comparison

    wanted = None if strategy is None else [item.strip() for item in strategy.split(",") if item.strip()]
    cases = compare.plan_cases(
        name, batch_size, wanted, image_size, steps,
        plans=plan_paths, budget=budget, input_shapes=shared.shapes(inputs) or None,
    )  # fmt: skip
    if plot_path:
        comparison.require_matplotlib()
    with shared.progress(name, len(cases), "cases") as told:
        study = compare.study(
            cases,
            front=bool(json_path),
            marks=(budget,) if budget else (),
            on_start=lambda case: told.start(f"{name}: {case}"),
            on_result=lambda _: told.done(),
        )
    if plot_path:
        comparison.plot(study.records, plot_path)
    if not shared.emit_json(measurement.Results((study,), shared.this_command()), json_path):
        comparison.print_table(comparison.comparison(study.records))
        comparison.print_table(comparison.losses(study.records))
    failed = [r for r in study.records if r.status == "failed"]
    if failed:
        raise TfgcError(f"{len(failed)} of {len(study.records)} cases failed; {failed[0].name}: {failed[0].detail}")
