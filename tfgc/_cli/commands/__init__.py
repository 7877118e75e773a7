"""The shell commands, one a file, found by listing this folder.

A file has a click command named `command`. Each imports what it needs when it runs, so help is instant.
"""

import importlib
import pkgutil

import click


def available() -> dict[str, click.Command]:
    """Mapping from the name of each command to its click command.

    >>> "plan" in available()
    True
    """
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.command.name: module.command for module in modules}
