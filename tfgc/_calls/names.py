"""Names of the layers in any model, and a line for each: the same when the model is cloned, saved or made again.

Keras numbers the layers that got no name (`dense_7`) by how many the process has made before. Here a number counts the
layers of that name which the same layer holds.
"""

from collections.abc import Iterator
from typing import Any

import keras

from tfgc._core import text
from tfgc._core.plan import Plan
from tfgc._framework import keras_models


def layers_by_name(model: keras.Model) -> dict[str, keras.Layer]:
    """Every layer inside a model, at any depth, by its path of names. One that several layers hold counts once.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(2), keras.layers.ReLU(name="act")])
        >>> list(layers_by_name(model))
        ['dense', 'dense_1', 'act']
    """
    return dict(_inside(model, "", {id(model)}))


def _inside(layer: keras.Layer, path: str, seen: set[int]) -> Iterator[tuple[str, keras.Layer]]:
    taken: set[str] = set()
    for held in keras_models.held_layers(layer):
        if id(held) in seen or isinstance(held, keras.layers.InputLayer):
            continue
        seen.add(id(held))
        name = text.unused(keras_models.base_name(held), taken, "_")
        taken.add(name)
        yield path + name, held
        yield from _inside(held, f"{path}{name}/", seen)


def describe(model: keras.Model) -> tuple[str, ...]:
    """A line for each layer: its name, its class, and the shapes of its own weights."""
    layers = layers_by_name(model).items()
    shapes = {name: [str(tuple(v.shape)) for v in keras_models.own_weights(layer)] for name, layer in layers}
    return tuple(f"{name} {type(layer).__name__} {' '.join(shapes[name])}" for name, layer in layers)


def layers_of(model: keras.Model, plan: Plan) -> tuple[list[keras.Layer], list[tuple[keras.Model, Plan]]]:
    """The layers that a plan of calls recomputes as a whole, and the functional parts with the plans of their own."""
    plan.check_model(describe(model))
    layers = layers_by_name(model)
    parts: list[tuple[Any, Plan]] = [(layers[name], part) for name, part in plan.parts.items()]
    return [layers[name] for name in plan.recomputed_layers], parts
