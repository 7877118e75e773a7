"""What `compile` takes by name, checked before anything runs: Keras looks at losses and metrics in the first step.

Keras has no list of its names; those that messages suggest are public functions and classes.
"""

import inspect
from collections.abc import Callable, Collection
from typing import Any

import keras

from tfgc._errors import OptionError, did_you_mean
from tfgc._framework import keras_models

# Keras chooses the crossentropy that fits the targets.
_CROSSENTROPY = ("crossentropy", "ce")
_ACCURACY = ("accuracy", "acc")
_SHORT = ("mse", "mae", "mape", "msle", *_CROSSENTROPY)
_OPTIMIZER = "give a keras.Optimizer or its name, such as 'adam'"
_LOSS = "give a keras.Loss, its name, such as 'mse', or a function of targets and predictions"
_METRIC = "give a keras.Metric, its name, such as 'mae', or a function of targets and predictions"


def optimizer(given: Any) -> Any:
    """The optimizer that is given, or named; raise `OptionError` if there is none of that name."""
    try:
        # Keras numbers the names of what has none, and would number the user's next one.
        return keras.optimizers.get(
            {"class_name": given, "config": {"name": given}} if isinstance(given, str) else given
        )
    except (ValueError, TypeError) as error:
        kinds = [kind for kind in vars(keras.optimizers).values() if isinstance(kind, type)]
        known = [kind.__name__.lower() for kind in kinds if issubclass(kind, keras.Optimizer)]
        raise _unknown("optimizer", given, known, _OPTIMIZER) from error


def copied(optimizer: keras.Optimizer) -> Any:
    """An optimizer of the same settings that is not built; Adam in place of one that cannot be made again."""
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except Exception:  # constructors and configs of other people's classes may do anything
        return keras.optimizers.Adam(name=optimizer.name)


def loss(given: Any) -> Callable[..., Any]:
    """The loss that is given, or named, Keras's crossentropy by the shapes; raises `OptionError` if there is none."""
    if isinstance(given, str) and given.lower() in _CROSSENTROPY:
        return _crossentropy
    if isinstance(given, list | tuple) or (isinstance(given, dict) and "class_name" not in given):
        raise OptionError(f"loss={given!r}: give one loss, which then counts for every output")
    found = _found("loss", given, keras.losses, _LOSS)
    if isinstance(found, keras.Metric | keras.Optimizer):
        raise OptionError(f"loss={given!r}: {type(found).__name__} is not a loss: {_LOSS}")
    return found


def _crossentropy(targets: Any, predictions: Any) -> Any:
    if targets.shape.rank < predictions.shape.rank:
        return keras.losses.sparse_categorical_crossentropy(targets, predictions)
    if predictions.shape[-1] == 1:
        return keras.losses.binary_crossentropy(targets, predictions)
    return keras.losses.categorical_crossentropy(targets, predictions)


def check_losses(given: Any, model: keras.Model) -> None:
    """Raise `OptionError` unless `model.compile` can read this loss, or list or dict of losses."""
    if isinstance(given, dict):
        _check_outputs("loss", given, model)
    if isinstance(given, dict | list | tuple):
        if not given:
            raise OptionError(f"loss={given!r} is empty: {_LOSS}")
        for one in keras.tree.flatten(given):
            check_losses(one, model)
    elif given is not None:
        loss(given)


def check_metrics(given: Any, model: keras.Model) -> None:
    """Raise `OptionError` unless `model.compile` can read these metrics."""
    if not isinstance(given, dict | list | tuple):
        raise OptionError(f"metrics={given!r}: give a list, metrics=[{given!r}]")
    if isinstance(given, dict) and hasattr(model, "output_names"):
        _check_outputs("metrics", given, model)
    for one in keras.tree.flatten(given):
        if one is not None and not (isinstance(one, str) and one.lower() in _ACCURACY):
            _found("metric", one, keras.metrics, _METRIC)


def _found(kind: str, given: Any, module: Any, way_out: str) -> Callable[..., Any]:
    """What Keras finds, as a function of targets and predictions."""
    try:
        found = module.get(given)
    except (ValueError, TypeError) as error:
        public = [name for name, one in vars(module).items() if callable(one) and not name.startswith("_")]
        known = {*public, *_SHORT} - {"get", "serialize", "deserialize", "Loss", "Metric"}
        raise _unknown(kind, given, known, way_out) from error
    if inspect.isfunction(found):
        try:
            inspect.signature(found).bind(None, None)
        except TypeError as error:
            raise OptionError(f"{kind} {given!r} does not take targets and predictions: {error}") from error
    return found


def _unknown(kind: str, given: Any, known: Collection[str], way_out: str) -> OptionError:
    hint = did_you_mean(given.lower(), sorted(known)) if isinstance(given, str) else ""
    return OptionError(f"there is no {kind} {given!r}{hint or f': {way_out}'}")


def _check_outputs(kind: str, given: dict[str, Any], model: keras.Model) -> None:
    """Raise if a dict names an output that a model does not have."""
    graph = keras_models.functional_graph(model)
    if graph is None:
        return
    names = getattr(model, "output_names", None) or []
    structure = graph.structured_outputs(graph.outputs)
    known = list(dict.fromkeys([*names, *(structure if isinstance(structure, dict) else [])]))
    for name in given:
        if name not in known:
            has = ", ".join(map(repr, known)) or f"one, without a name: give its {kind} alone"
            raise OptionError(
                f"{kind}={given!r}: {model.name!r} has no output {name!r}{did_you_mean(name, known)}; it has {has}"
            )
