"""The shell's entry: one group of the commands in `commands/`."""

import importlib
import pkgutil

import click

from tfgc._cli import commands


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tfgc", message="tfgc %(version)s")
def cli() -> None:
    """Train Keras models in less memory, and measure what it costs.

    NAME is a network of tfgc's zoo ("unet", "big_cnn(3, 9)") or of keras.applications
    ("resnet50"), a module:function that builds a model, or a saved .keras file;
    `tfgc zoo` lists the networks.

    Exit codes: 0 success; 1 error, with a one-line message; 2 wrong usage; 130 interrupted.
    """


for _found in pkgutil.iter_modules(commands.__path__):
    cli.add_command(importlib.import_module(f"{commands.__name__}.{_found.name}").command)
