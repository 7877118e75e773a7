"""`tfgc zoo`: the networks that can be named."""

import dataclasses

import click
import rich.box
import rich.table

from tfgc import _cli_options as shared


@click.command("zoo")
@click.argument("words", nargs=-1)
@shared.json_option
def command(words, json_path):
    """List the networks that other commands can name; those whose name or family has one of WORDS, if given.

    Besides these any module:function that builds a model, and any saved .keras file.
    """
    from tfgc import _report
    from tfgc.zoo import catalogue

    found = [n for n in catalogue() if not words or any(w.lower() in f"{n.name} {n.family}" for w in words)]
    if shared.tell_json([dataclasses.asdict(network) for network in found], json_path):
        return
    table = rich.table.Table(box=rich.box.SIMPLE, title=f"{len(found)} networks, none with weights to download")
    for head in ("name", "arguments", "what it is"):
        table.add_column(head, overflow="fold")
    for network in found:
        arguments = ", ".join(f"{name}={value}" for name, value in network.arguments.items() if value is not None)
        table.add_row(network.name, arguments, network.summary)
    _report.print_table(table)
