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
def command(files, output):
    """Write a report of results FILES, as `--json` of other commands writes them.

    A front joins the measurements of the same network and batch. Nothing is measured or trained.
    """
    from tfgc import _page, _results

    kind = _page.ending(output)
    for path in files:
        if os.path.exists(output) and os.path.exists(path) and os.path.samefile(path, output):
            raise OptionError(f"-o {output!r}: that is one of the files to read, name another")
    shared.check_writable(output)
    _page.require(kind)
    made = _page.render([_results.read(path) for path in files], kind)
    with open(output, "wb") as file:
        file.write(made if kind == ".png" else made.encode())
    click.echo(f"written to {output}")
