"""`tfgc info`: versions, devices and free memory."""

import contextlib
import importlib.metadata
import os
import platform
import sys
from typing import Any

import click

from tfgc._cli import choices, options
from tfgc._errors import OptionError

_EXTRAS = {"jinja2": "report", "matplotlib": "report", "scipy": "ilp"}


@click.command("info", cls=options.Command)
@options.json_option
def command(json_path: str | None) -> None:
    """Print versions, devices and free memory.

    Include the output when you report a problem.
    """
    facts = _facts()
    if options.emit_json(facts, json_path):
        return
    from tfgc._units import format_bytes

    for package, version in {**facts["versions"], **dict.fromkeys(facts["missing"], "")}.items():
        missing = f'not installed: pip install "tfgc[{_EXTRAS.get(package)}]"'
        click.echo(f"{package:16} {version or missing}")
    click.echo(f"{'machine':16} {facts['machine']}, {facts['cpus']} processors, {facts['kernels']} kernels")
    click.echo(f"{'memory':16} {format_bytes(facts['free_bytes'])} free of {format_bytes(facts['memory_bytes'])}")
    for device in facts["devices"]:
        free = "" if device["free_bytes"] is None else f", {format_bytes(device['free_bytes'])} free"
        click.echo(f"{'device':16} {device['name']}{free}")


def _facts() -> dict[str, Any]:
    import psutil

    choices.import_quietly()
    import keras
    import numpy as np
    import tensorflow as tf

    versions: dict[str, str | None] = {"python": platform.python_version(), "tfgc": sys.modules["tfgc"].__version__}
    versions |= {module.__name__: module.__version__ for module in (tf, keras, np)}
    versions |= {package: _version(package) for package in _EXTRAS}
    from tfgc._framework import memory_counts
    from tfgc._planning import free_memory

    free = None  # where they cannot be read
    with contextlib.suppress(OptionError):
        free = free_memory.free_bytes()
    gpus = tf.config.list_physical_devices("GPU")
    return {
        "versions": {package: version for package, version in versions.items() if version},
        "missing": [package for package, version in versions.items() if not version],
        "machine": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "kernels": memory_counts.cpu_kernels(),
        "memory_bytes": psutil.virtual_memory().total,
        "free_bytes": free_memory.machine_bytes(),
        "devices": [
            {"name": device.name.removeprefix("/physical_device:"), "free_bytes": free if i == 0 else None}
            for i, device in enumerate(gpus or tf.config.list_physical_devices("CPU"))
        ],
    }


def _version(package: str) -> str | None:
    """The installed version, without an import."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
