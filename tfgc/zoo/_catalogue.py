"""The networks that can be built by name, listed without importing TensorFlow, Keras or a family.

Listing, shell completion and errors have to come at once: the families are read as text, and so is what Keras exports.
"""

import ast
import dataclasses
import functools
import importlib.util
import pathlib
import re
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Network:
    """A network that `build` knows.

    Attributes:
        name: What `build` is given.
        source: "tfgc.zoo" or "keras.applications".
        family: The module that has its builder; empty for those of Keras.
        arguments: The builder's arguments in order, each with its default; None as an `image_size` is the paper's.
        summary: What it is, in one line.
    """

    name: str
    source: str
    family: str
    arguments: dict[str, Any]
    summary: str


def catalogue() -> list[Network]:
    """Return a `Network` for each network that can be built by its name, sorted, tfgc's own first.

    Imports neither TensorFlow nor Keras, and takes milliseconds.

    >>> [network.arguments for network in catalogue() if network.name == "unet"]
    [{'width': 64, 'depth': 4, 'image_size': 128, 'classes': 2}]
    """
    folder = pathlib.Path(__file__).parent
    own = [network for path in folder.glob("[!_]*.py") for network in _read(path)]
    keras_own = [
        Network(name.lower(), "keras.applications", "", {"image_size": None}, f"keras.applications.{name}.")
        for name in exported("applications")
    ]
    return sorted(own, key=lambda network: network.name) + sorted(keras_own, key=lambda network: network.name)


@functools.cache
def exported(module: str) -> list[str]:
    """The functions and classes that `keras.<module>` has in capitals, such as networks and optimizers, sorted.

    >>> "ResNet50" in exported("applications"), "Adam" in exported("optimizers")
    (True, True)
    """
    keras = importlib.util.find_spec("keras")
    folders = keras.submodule_search_locations if keras else None
    files = pathlib.Path((folders or [""])[0], "src", module).glob("*.py")
    return sorted({name for path in files for name in re.findall(rf'"keras\.{module}\.([A-Z]\w*)"', path.read_text())})


def _read(family: pathlib.Path) -> Iterator[Network]:
    """The networks of a family: its public functions."""
    for node in ast.parse(family.read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            names = [argument.arg for argument in node.args.args]
            defaults = [ast.literal_eval(default) for default in node.args.defaults]
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            yield Network(node.name, "tfgc.zoo", family.stem, dict(zip(names, defaults, strict=True)), summary)
