"""`tfgc zoo`: the networks that can be named."""

import dataclasses

import click

from tfgc._cli import options as shared


@click.command("zoo", cls=shared.Command)
@click.argument("words", nargs=-1)
@shared.json_option
def command(words, json_path):
    """List the networks that other commands accept, filtered by WORDS in their name or family.

    They also accept any module:function that builds a model, and any saved .keras file.
    """
    from tfgc._records.table import TextTable
    from tfgc._report import comparison
    from tfgc.zoo import catalogue

    found = [n for n in catalogue() if not words or any(w.lower() in f"{n.name} {n.family}" for w in words)]
    if shared.emit_json([dataclasses.asdict(network) for network in found], json_path):
        return
    told = lambda n: ", ".join(f"{name}={value}" for name, value in n.arguments.items() if value is not None)
    rows = tuple((network.name, told(network), network.summary) for network in found)
    title = f"{len(found)} networks, none with weights to download"
    comparison.print_table(TextTable(title, ("name", "arguments", "what it is"), rows))
