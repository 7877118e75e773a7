"""`tfgc bench`: benchmark suites beside published figures."""

import click

from tfgc import _suites
from tfgc._cli import options as shared
from tfgc._errors import OptionError


@click.command("bench", cls=shared.Command, epilog=f"Suites: {', '.join(_suites.available())}.")
@click.argument(
    "suite",
    is_eager=True,
    shell_complete=lambda context, option, text: [s for s in _suites.available() if s.startswith(text)],
)
@click.argument("networks", nargs=-1)
@click.option(
    "--predict", is_flag=True, is_eager=True, help="Plan and predict at the published batch sizes, without training."
)
@click.option(
    "--scale", type=float, default=1.0, show_default=True, help="Fraction of each published batch size to run."
)
@click.option("--steps", type=int, help="Measured steps per case.  [default: the suite's]")
@click.option("--measure", is_flag=True, help="Plan by times measured on this device instead of flops.")
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
@click.option("--table", is_flag=True, is_eager=True, help="Print the results file and run nothing.")
@click.option(
    "-o", "--output", type=shared.OUTPUT, callback=lambda context, option, path: _kept(path, **context.params),
    help="Results file; resumed if it exists.  [default: bench-SUITE.json, -predicted with --predict]",
)  # fmt: skip
@shared.json_option
def command(suite, networks, predict, scale, steps, measure, markdown, table, output, json_path):
    """Measure the networks of a published SUITE, or those named, next to the published figures.

    Each case runs in a separate process and is saved to the results file as soon as it finishes, so an interrupted
    run resumes where it stopped. `tfgc report` turns the file into a page.
    """
    from tfgc._measure import results_file, suite_runner
    from tfgc._report import comparison

    rows = suite_runner.chosen_rows(suite, scale, networks)
    if predict and steps is not None:
        raise OptionError("--steps: with --predict no step is run")
    if table:
        results = results_file.read(suite, output, networks)
    else:
        file = results_file.ResultsFile(suite, output, predict, shared.this_command())
        with shared.progress(suite, sum(map(suite_runner.size, rows)), "cases") as bar:
            draw = {"started": bar.start, "done": lambda _: bar.done(), "kept": lambda _: bar.skip()}
            for event in suite_runner.run(rows, file, measure=measure, steps=steps):
                draw[event.kind](event.what)
        results = file.results
    if shared.emit_json(results, json_path):
        return
    for sheet in _suites.get(suite).sheets(results):
        if markdown:
            click.echo(sheet.markdown())
        else:
            comparison.print_table(sheet)
    if not table:
        click.echo(f"kept in {output}; tfgc report {output} -o report.html makes a page of it", err=True)


def _kept(path, suite, predict, table, **_):
    """The results file, which is written unless it is only to be shown."""
    path = path or f"bench-{suite}{'-predicted' if predict else ''}.json"
    return (shared.read if table else shared.written)(path)
