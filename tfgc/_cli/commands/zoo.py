"""`tfgc zoo`: the networks that can be named."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from tfgc._cli import options

if TYPE_CHECKING:
    from tfgc.zoo._catalogue import Network


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
    if options.emit_json([dataclasses.asdict(network) for network in found], json_path):
        return
    rows = tuple((network.name, _arguments(network), network.summary) for network in found)
    title = f"{len(found)} networks, none with weights to download"
    command_tables.print_table(TextTable(title, ("name", "arguments", "what it is"), rows))


def _arguments(network: Network) -> str:
    return ", ".join(f"{name}={value}" for name, value in network.arguments.items() if value is not None)
