"""`tfgc zoo`: the networks that can be named."""

import dataclasses

import click

from tfgc._cli import options
from tfgc._errors import OptionError


@click.command("zoo", cls=options.Command)
@click.argument("words", nargs=-1)
@options.json_option
def command(words: tuple[str, ...], json_path: str | None) -> None:
    """List the networks that other commands accept.

    With WORDS, only those with one of them in their name or family. The commands also accept any module:function
    that builds a model, and any saved .keras file.
    """
    from tfgc._records.table import TextTable
    from tfgc._report import command_tables
    from tfgc.zoo import catalogue

    found = [n for n in catalogue() if not words or any(w.lower() in f"{n.name} {n.family}" for w in words)]
    if not found:
        raise OptionError(f"no network has {' or '.join(map(repr, words))} in its name or family: `tfgc zoo` lists all")
    if options.emit_json([dataclasses.asdict(network) for network in found], json_path):
        return
    arguments = [", ".join(f"{key}={value}" for key, value in n.arguments.items() if value is not None) for n in found]
    rows = [(network.name, words, network.summary) for network, words in zip(found, arguments)]
    title = f"{len(found)} networks, none with weights to download"
    command_tables.print_table(TextTable(title, ("name", "arguments", "what it is"), rows))
