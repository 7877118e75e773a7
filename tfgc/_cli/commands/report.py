"""`tfgc report`: results files as a page, as Markdown or as a picture."""

import os

import click

from tfgc import _files
from tfgc._cli import options
from tfgc._errors import OptionError

_DEFAULT = "report.html"


@click.command("report", cls=options.Command)
@click.argument("files", nargs=-1, required=True, type=options.INPUT)
@click.option(
    "-o", "--output", type=options.OUTPUT,
    help="File to write: .html (self-contained page), .md (Markdown) or .png (figures).  [default: report.html]",
)  # fmt: skip
@options.json_option
def command(files: tuple[str, ...], output: str | None, json_path: str | None) -> None:
    """Write a report: a page, Markdown or pictures.

    FILES are the results of `compare --json` and `sweep --json`. A Pareto front is joined with the
    measurements of the same network and batch size. Nothing is measured or trained. --json also writes the joined
    results, or prints them instead of a report.
    """
    from tfgc._records import measurement, results_json
    from tfgc._report import html_page, study_tables

    if output is None and json_path != "-" and os.path.exists(_DEFAULT):  # only a file that was named is replaced
        raise OptionError(f"{_DEFAULT} is there already: to replace it, name it: -o {_DEFAULT}")
    output = output or _DEFAULT
    kind = html_page.ending(output)
    listed = [results_json.read(path) for path in files]
    results = measurement.Results(tuple(study_tables.joined(listed)), options.this_command())
    if json_path != "-":
        _files.write(output, html_page.render(listed, kind))
    if options.emit_json(results, json_path):
        return
    options.echo(f"written to {output}")
