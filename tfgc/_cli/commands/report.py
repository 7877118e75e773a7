"""`tfgc report`: results files as a page, as Markdown or as a picture."""

import click

from tfgc import _cli_options as shared
from tfgc import _files

_DEFAULT = "report.html"


@click.command("report", cls=shared.Command)
@click.argument("files", nargs=-1, required=True, type=shared.INPUT)
@click.option(
    "-o", "--output", type=shared.OUTPUT,
    callback=lambda context, option, path: _output(context, path),
    help="Write this file: .html (a page that needs nothing else), .md (Markdown) or .png (pictures).  "
    "[default: report.html]",
)  # fmt: skip
@shared.json_option
def command(files, output, json_path):
    """Write a report of results FILES, as `bench`, `compare --json` and `sweep --json` write them.

    A front joins the measurements of the same network and batch. Nothing is measured or trained.
    With --json the joined results are told, too, or printed in place of a report.
    """
    from tfgc import _page, _results, _tables

    kind = _page.ending(output or _DEFAULT)
    listed = [_results.read(path) for path in files]
    if shared.tell_json(_results.Results(tuple(_tables.joined(listed)), shared.this_command()), json_path):
        return
    _page.require(kind)
    _files.write(output, _page.render(listed, kind))
    click.echo(f"written to {output}")


def _output(context, path):
    """The file to write; none where the results are printed in its place."""
    printed = context.params["json_path"] == "-"
    return path if path is not None or printed else shared.written(_DEFAULT)
