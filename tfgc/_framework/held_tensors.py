"""Tensors in attributes of layers, such as the mean of a `Normalization` or encodings of positions.

A trace takes each as an argument of its own, and serves as long as the layer holds that very tensor.
"""

from collections.abc import Callable, Iterable
from typing import Any

import keras

from tfgc._framework.layer_values import leaves


def held(layers: Iterable[keras.Layer], tensors: Iterable[Any]) -> Callable[[], bool] | None:
    """What says whether attributes of the layers hold these tensors still; None where one is in none of them now."""
    attributes: list[tuple[Any, str]] = [(vars(layer), name) for layer in layers for name in vars(layer)]
    found: list[tuple[Any, str, Any]] = []
    for tensor in tensors:
        place = next((place for place in attributes if _is_in(tensor, *place)), None)
        if place is None:
            return None
        found.append((*place, tensor))
    return lambda: all(_is_in(tensor, own, name) for own, name, tensor in found)


def _is_in(tensor: Any, own: Any, name: str) -> bool:
    return any(leaf is tensor for leaf in leaves(own.get(name)))
