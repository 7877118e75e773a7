"""Say which layers are meant: by layers themselves, names, paths, patterns, classes or functions."""

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from tfgc._error_texts import one_line
from tfgc._errors import OptionError, did_you_mean
from tfgc._framework import keras_models

# How many names of layers a message shows.
_OFFERED = 8
Selector = keras.Layer | str | type | Callable[[keras.Layer], bool]


def choose(model: keras.Model, chosen: Selector | Iterable[Selector]) -> list[keras.Layer]:
    """Return the layers of `model` that are meant, each once: by one selector or several of any kinds."""
    single = isinstance(chosen, str | keras.Layer) or not isinstance(chosen, Iterable)
    if isinstance(chosen, dict):
        raise OptionError(f"layers={chosen!r}: give a list of layers, names or patterns, layers={[*chosen]!r}")
    selectors: Any = [chosen] if single else chosen
    parts = [layer for layer in keras_models.layers_inside(model) if not isinstance(layer, keras.layers.InputLayer)]
    found: dict[keras.Layer, None] = {}
    for meant in [select(selector, model, parts) for selector in selectors]:
        outside = [layer for layer in meant if not _is_cell_with_masks(layer)]
        if not outside:
            raise OptionError(f"layers: {meant[0].name!r} is a cell whose RNN holds its dropout masks: name the RNN")
        found.update(dict.fromkeys(outside))
    if not found:
        raise OptionError("layers=[]: name at least one layer to recompute")
    return list(found)


def _is_cell_with_masks(layer: keras.Layer) -> bool:
    return hasattr(layer, "reset_dropout_mask") and bool(layer.dropout or layer.recurrent_dropout)


def select(selector: Selector, model: keras.Model, parts: Sequence[keras.Layer]) -> list[keras.Layer]:
    """Those of `parts`, layers of `model`, that a selector means; the model is meant by its name or object alone."""
    inside = [layer for layer in parts if layer is not model]
    if isinstance(selector, keras.Layer):
        meant, hint = [layer for layer in parts if layer is selector], did_you_mean(selector.name, _names(parts))
        what = f"layer {selector!r}"
    elif isinstance(selector, str):
        meant = [layer for layer in parts if selector in (layer.name, layer.path)] or _matching(selector, inside)
        like = "layer that matches" if set(selector) & set("*?[") else "layer"
        what, hint = f"{like} {selector!r}", _meant(selector, model, parts)
    elif isinstance(selector, type):
        meant = [layer for layer in inside if isinstance(layer, selector)]
        what = f"layer of class {selector.__name__}"
        hint = did_you_mean(selector.__name__, sorted({type(layer).__name__ for layer in inside}))
    elif callable(selector):
        meant = [layer for layer in inside if _holds(selector, layer)]
        what, hint = f"layer for which {_name(selector)} is True", ""
    else:
        raise OptionError(f"layers: {selector!r} is no layer, name, pattern, class or function of a layer")
    if not meant:
        raise OptionError(f"layers: {model.name!r} has no {what}{hint}")
    return meant


def _names(layers: Sequence[keras.Layer]) -> list[str]:
    # Before it is built a layer has no path.
    return sorted({name for layer in layers for name in (layer.name, layer.path) if name})


def _meant(selector: str, model: keras.Model, parts: Sequence[keras.Layer]) -> str:
    """What a name or a pattern that means no layer may have meant."""
    if "/" in selector and not model.built:
        return "; layers have paths once the model is built, until then give names"
    if hint := did_you_mean(selector, _names(parts)):
        return hint
    names = list(dict.fromkeys(layer.name for layer in parts if layer is not model))
    return f"; there are {', '.join(map(repr, names[:_OFFERED]))}{', ...' if len(names) > _OFFERED else ''}"


def _matching(pattern: str, layers: Sequence[keras.Layer]) -> list[keras.Layer]:
    if "/" in pattern:
        return [layer for layer in layers if layer.path and fnmatch.fnmatchcase(layer.path, pattern)]
    return [layer for layer in layers if fnmatch.fnmatchcase(layer.name, pattern)]


def _holds(function: Callable, layer: keras.Layer) -> bool:
    where = f"for layer {layer.path or layer.name!r}"
    try:
        answer = function(layer)
    except Exception as error:
        raise OptionError(f"layers: {_name(function)} failed {where}: {one_line(error)}") from error
    if not isinstance(answer, bool | np.bool_):
        raise OptionError(f"layers: {_name(function)} returned {answer!r} {where}: it must return True or False")
    return bool(answer)


def _name(function: Callable) -> str:
    return getattr(function, "__name__", repr(function))
