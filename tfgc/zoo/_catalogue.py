"""The networks that can be built by name, listed and looked up without importing TensorFlow, Keras or a family.

Listing, shell completion and errors have to come at once: the families are read as text, and so is what Keras exports.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from tfgc import _user_modules
from tfgc._errors import OptionError, TfgcError, check_int, did_you_mean
from tfgc._units import parse_count


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


def check(name: Any, image_size: int | None = None) -> tuple[Network, list[int | None]] | None:
    """The network that a name stands for and its arguments, None for a file or a builder; raise for what is unknown.

    Imports neither TensorFlow nor Keras.
    """
    if not isinstance(name, str):
        raise OptionError(f"{name!r} is no name of a network: give one such as 'resnet50'")
    if image_size is not None:
        check_int("image_size", image_size)
    if name.endswith(".keras"):
        refuse(image_size, name, "a saved model has its input size")
        if not os.path.exists(name):
            raise OptionError(f"there is no file {name!r}: give the path of a model that model.save wrote")
        if os.path.isfile(name) and not zipfile.is_zipfile(name):
            raise TfgcError(
                f"{name!r} is not a saved Keras model, or a damaged one: save it again with model.save(path)"
            )
        return None
    if ":" in name:
        with importing("the builder", name):
            _user_modules.check(name.partition(":")[0])
        return None
    called = re.fullmatch(r"(\w+)\(([\d, ]*)\)", name)
    base, words = (name, "") if called is None else called.groups()
    arguments = [parse_count(word.strip()) for word in words.split(",") if word.strip()]
    known = {network.name: network for network in catalogue()}
    own = [network.name for network in known.values() if network.family]
    if None in arguments:
        raise OptionError(f"{name!r}: arguments must be integers with commas between them")
    if called is not None and base not in own:
        raise OptionError(f"{name!r}: only tfgc's own networks take arguments ({', '.join(own)})")
    plain = name.lower().replace("_", "").replace("-", "")  # as people write those of Keras
    network = known.get(base) or (None if plain in own else known.get(plain))
    if network is None:
        raise OptionError(
            f"there is no network {name!r}{did_you_mean(name.lower(), known)} (available: {', '.join(own)}, "
            "those of keras.applications such as resnet50, module:function, and .keras files)"
        )
    if len(arguments) > len(network.arguments):
        raise OptionError(f"{name!r}: it takes at most {len(network.arguments)}: {', '.join(network.arguments)}")
    if "image_size" not in network.arguments:
        refuse(image_size, name, "it takes no image_size")
    return network, arguments


@contextlib.contextmanager
def importing(what: str, name: str) -> Iterator[None]:
    """Raise `OptionError` where `name`, which is to name `what`, cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise OptionError(f"cannot import {what} {name!r}: {error}; it is written module:function") from error


def refuse(image_size: int | None, name: str, why: str) -> None:
    if image_size is not None:
        raise OptionError(f"image_size={image_size} does not apply to {name!r}: {why}")
