"""`tfgc report`: results files as a page, as Markdown or as a picture."""

import os

import click

from tfgc import _cli_options as shared
from tfgc._errors import OptionError


@click.command("report")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o", "--output", default="report.html", show_default=True, type=click.Path(dir_okay=False),
    help="Write this file: .html (a page that needs nothing else), .md (Markdown) or .png (pictures).",
)  # fmt: skip
@shared.json_option
def command(files, output, json_path):
    """Write a report of results FILES, as `bench`, `compare --json` and `sweep --json` write them.

    A front joins the measurements of the same network and batch. Nothing is measured or trained.
    With --json the joined results are told, too, or printed in place of a report.
    """
    from tfgc import _page, _results, _tables

    kind = _page.ending(output)
    for path in files:
        if json_path not in (None, "-") and os.path.exists(path) and os.path.samefile(path, json_path):
            raise OptionError(f"--json {json_path!r}: that is one of the files to read, name another")
        if os.path.exists(output) and os.path.exists(path) and os.path.samefile(path, output):
            raise OptionError(f"-o {output!r}: that is one of the files to read, name another")
    shared.check_writable(output)
    listed = [_results.read(path) for path in files]
    if shared.tell_json(_results.Results(tuple(_tables.joined(listed)), shared.this_command()), json_path):
        return
    _page.require(kind)
    made = _page.render(listed, kind)
    with open(output, "wb") as file:
        file.write(made if kind == ".png" else made.encode())
    click.echo(f"written to {output}")
