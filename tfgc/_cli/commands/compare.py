"""`tfgc compare`: memory and time against a plain GradientTape."""

import click

from tfgc._cli import options as shared
from tfgc._errors import TfgcError


@click.command("compare", cls=shared.Command)
@shared.model_options
@click.option(
    "--strategy",
    help="Strategies, separated by commas; sqrt:8 stands for sqrt with 8 segments.  "
    "[default: none with a plan, budget with a budget, else sqrt]",
)
@click.option("--plan", "plan_paths", multiple=True, type=shared.INPUT, help="Measure this plan file; repeatable.")
@click.option("--budget", help="Bytes of the whole step, for strategies that honour a budget.")
@click.option("--steps", type=int, default=5, show_default=True, help="Counted steps of each case.")
@click.option("--plot", "plot_path", type=shared.PICTURE, help="Draw memory over time into this PNG.")
@shared.json_option
def command(name, batch_size, image_size, inputs, strategy, plan_paths, budget, steps, plot_path, json_path):
    """Measure memory and time of training NAME against a plain GradientTape.

    Each case runs in a process of its own, one after the other: plain-eager, plain-graph, and
    each strategy and plan in eager calls and in tf.function. A case that runs out of memory is a row "oom".
    The JSON file is one that `tfgc report` reads; for it the least work for each peak is predicted, too.
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
