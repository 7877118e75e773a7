"""What names of networks are written like, checked before TensorFlow or Keras are imported, which takes seconds."""

import contextlib
import os
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from tfgc import _user_modules
from tfgc._errors import OptionError, TfgcError, check_int, did_you_mean
from tfgc._units import parse_count
from tfgc.zoo._catalogue import Network, catalogue


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
