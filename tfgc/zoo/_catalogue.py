"""The networks that can be built by name, listed without importing TensorFlow, Keras or a family.

Listing and shell completion have to start at once: the families are read as text, and the names of
`keras.applications` stand here. A newer Keras may have more of them, which `build` finds all the same.
"""

import ast
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

# fmt: off
APPLICATIONS = [
    "ConvNeXtBase", "ConvNeXtLarge", "ConvNeXtSmall", "ConvNeXtTiny", "ConvNeXtXLarge", "DenseNet121",
    "DenseNet169", "DenseNet201", "EfficientNetB0", "EfficientNetB1", "EfficientNetB2", "EfficientNetB3",
    "EfficientNetB4", "EfficientNetB5", "EfficientNetB6", "EfficientNetB7", "EfficientNetV2B0",
    "EfficientNetV2B1", "EfficientNetV2B2", "EfficientNetV2B3", "EfficientNetV2L", "EfficientNetV2M",
    "EfficientNetV2S", "InceptionResNetV2", "InceptionV3", "MobileNet", "MobileNetV2", "MobileNetV3Large",
    "MobileNetV3Small", "NASNetLarge", "NASNetMobile", "ResNet101", "ResNet101V2", "ResNet152", "ResNet152V2",
    "ResNet50", "ResNet50V2", "VGG16", "VGG19", "Xception",
]
# fmt: on


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
        for name in APPLICATIONS
    ]
    return sorted(own, key=lambda network: network.name) + sorted(keras_own, key=lambda network: network.name)


def _read(family: pathlib.Path) -> Iterator[Network]:
    """The networks of a family: its public functions."""
    for node in ast.parse(family.read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            names = [argument.arg for argument in node.args.args]
            defaults = [ast.literal_eval(default) for default in node.args.defaults]
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            yield Network(node.name, "tfgc.zoo", family.stem, dict(zip(names, defaults, strict=True)), summary)
