"""`tfgc bench`: benchmark suites next to published figures."""

from typing import Any

import click

from tfgc import _suites
from tfgc._cli import options, progress
from tfgc._errors import OptionError


@click.command("bench", cls=options.Command, epilog=f"Suites: {', '.join(_suites.available())}.")
@click.argument(
    "suite",
    is_eager=True,
    shell_complete=lambda context, option, text: [s for s in _suites.available() if s.startswith(text)],
)
@click.argument("networks", nargs=-1)
@click.option("--predict", is_flag=True, is_eager=True, help="Plan and predict, without training.")
@click.option(
    "--scale", type=float, default=1.0, show_default=True, help="Fraction of each published batch size to run."
)
@click.option("--steps", type=int, help="Measured steps per case.  [default: the suite's]")
@click.option(
    "--measure",
    "--time-layers",
    "measure",
    is_flag=True,
    help="Plan by seconds of a step on this device, not by flops.",
)
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
@click.option("--table", is_flag=True, is_eager=True, help="Print the tables of the results file and run nothing.")
@click.option(
    "-o", "--output", type=options.OUTPUT, callback=lambda context, option, path: _kept(path, **context.params),
    help="Results file; resumed if it exists.  [default: bench-SUITE.json, -predicted with --predict]",
)  # fmt: skip
@options.json_option
def command(
    suite: str,
    networks: tuple[str, ...],
    predict: bool,
    scale: float,
    steps: int | None,
    measure: bool,
    markdown: bool,
    table: bool,
    output: str,
    json_path: str | None,
) -> None:
    """Measure the networks of a published SUITE of benchmarks.

    The tables show the figures next to the published ones. Name NETWORKS to run only those. Each case runs in a
    separate process and is saved to the results file as soon as it finishes, so an interrupted run resumes where it
    stopped. `tfgc report` turns the file into a page.
    """
    from tfgc._measure import compare, results_file, suite_runner
    from tfgc._report import command_tables
    from tfgc._report import markdown as markdown_tables

    rows = suite_runner.chosen_rows(suite, scale, networks)
    if predict and steps is not None:
        raise OptionError("--steps: with --predict no step is run")
    if table:
        results = results_file.read(suite, output, networks)
    else:
        file = results_file.ResultsFile(suite, output, predict, options.this_command())
        with progress.bar(suite, sum(len(row.cases) or 1 for row in rows), "cases") as cases:
            draw = {"started": cases.start, "done": lambda _: cases.done(), "kept": lambda _: cases.skip()}
            suite_runner.run(rows, file, lambda kind, what: draw[kind](what), measure=measure, steps=steps)
        results = file.results
    sheets = [] if options.emit_json(results, json_path) else _suites.sheets(results)
    for sheet in sheets:
        if markdown:
            click.echo(markdown_tables.table(sheet))
        else:
            command_tables.print_table(sheet)
    if not table:
        if sheets:
            options.echo(f"results are in {output}; for a page: tfgc report {output} -o report.html", err=True)
        compare.check_measured(study for study in results.studies if study.network in {row.network for row in rows})


def _kept(path: str | None, suite: str, predict: bool, table: bool, **_: Any) -> str:
    """The results file, which is written unless it is only to be shown."""
    path = path or f"bench-{suite}{'-predicted' if predict else ''}.json"
    return (options.read if table else options.written)(path)
