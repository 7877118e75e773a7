"""A user's model as what a child process can make it from again: its configuration, or a function that builds it."""

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import keras
import tensorflow as tf

from tfgc import zoo
from tfgc._core.ignored_warnings import ignored_warnings
from tfgc._error_texts import one_line
from tfgc._errors import UnsupportedModelError
from tfgc._framework import keras_models, layer_settings
from tfgc._measure import case_choice
from tfgc._planning import ahead


@dataclasses.dataclass(frozen=True)
class Shipped:
    """Builds the model again when called, compiled for training. Its weights have other values."""

    build: Callable[..., Any] | None  # None: from its configuration
    config: Any  # as Keras serializes it
    objects: dict[str, Any]  # the user's classes and functions in it, by the names that Keras has for them
    # The kinds and names of its layers and operations: in what code makes, Keras numbers them by how many were made
    # before, another number in each process.
    names: tuple[tuple[str, str], ...]
    optimizer: Any  # what a functional model is compiled with, serialized; None: as it was, or Adam
    loss: Any  # the same of its loss; None: as it was, or a squared error

    def __call__(self) -> keras.Model:
        with keras.saving.custom_object_scope(self.objects):
            model = _revived(self.config) if self.build is None else zoo.checked(self.build, self.build())
            parts = _parts(model)
            made = [(type(part).__name__, part.name) for part in parts]
            # Those that Keras made by their names may come in another order, as where outputs are an `OrderedDict`.
            named_already = sorted(made) == sorted(self.names)
            if not named_already and [kind for kind, _ in made] == [kind for kind, _ in self.names]:
                for part, (_, name) in zip(parts, self.names):
                    part.name = name
            if ahead.applies_to(model):
                return model
            # The name of a loss is left to `compile`, which alone knows "crossentropy".
            loss = keras.losses.get(self.loss) if isinstance(self.loss, dict) else self.loss
            named = {"optimizer": keras.optimizers.get(self.optimizer), "loss": loss}
            named = {name: value for name, value in named.items() if value is not None}
            known: dict[str, Any] = {"optimizer": "adam", "loss": "mse"}
            if model.compiled and named:
                known = _compiled_with(model)
            if not model.compiled or named:
                model.compile(**{**known, **named})
        return model


def shipped(model: keras.Model, confirm: Any, optimizer: Any, loss: Any) -> Shipped:
    """What builds a model in a child process, or why it cannot be sent there; arguments as for `tfgc.plan`."""
    try:
        with ignored_warnings():  # Keras finds lambdas unsafe in files of others
            made = Shipped(
                build=confirm if callable(confirm) else None,
                config=None if callable(confirm) else _config(model),
                objects=dict(_objects(model, optimizer, loss)),
                names=tuple((type(part).__name__, part.name) for part in _parts(model)),
                optimizer=case_choice.serialized(optimizer),
                loss=keras.losses.serialize(loss) if isinstance(loss, keras.Loss) else loss,
            )
            cloudpickle.dumps(made)
    except Exception as error:  # the model is the user's code
        raise UnsupportedModelError(
            f"{label(confirm)}: {model.name!r} cannot be sent to a child process: {one_line(error)}"
            f"{advice(confirm, '. ')}"
        ) from error
    return made


def _config(model: keras.Model) -> dict[str, Any]:
    """A model as Keras serializes it, without settings that its class does not take."""
    made: Any = keras.saving.serialize_keras_object(model)
    taken = inspect.signature(type(model)).parameters
    if ahead.applies_to(model) and all(one.kind is not one.VAR_KEYWORD for one in taken.values()):
        made["config"] = {name: value for name, value in made["config"].items() if name in taken}
    return made


def _revived(config: dict[str, Any]) -> Any:
    try:
        return keras.saving.deserialize_keras_object(config, safe_mode=False)
    except TypeError as error:
        raise TypeError(str(error).rpartition("Exception encountered: ")[2]) from error


def _compiled_with(model: Any) -> dict[str, Any]:
    """What a model is compiled with; without metrics where Keras cannot read again what it wrote of them."""
    try:
        return keras.saving.deserialize_keras_object(model.get_compile_config(), safe_mode=False)
    except Exception:  # of functions and classes that others wrote
        return {"optimizer": model.optimizer, "loss": model.loss}


def _parts(model: Any) -> list[Any]:
    """All layers and operations in a model, in the order in which its code makes them."""
    layers = keras_models.layers_inside(model)
    operations = [part for layer in layers for part in getattr(layer, "operations", ())]
    return list({id(part): part for part in [*layers, *operations]}.values())


def advice(confirm: Any, before: str) -> str:
    """What helps where Keras cannot make a model again; nothing for one that a function makes."""
    return f"{before}give a function that builds the model instead of True: confirm=build" if confirm is True else ""


def label(confirm: Any) -> str:
    """The argument in errors."""
    return f"confirm={getattr(confirm, '__name__', True)}"


def _objects(model: keras.Model, optimizer: Any, loss: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of all classes and functions in a model that are not Keras's."""
    parts: list[Any] = [*keras_models.layers_inside(model), optimizer, loss]
    if model.compiled:
        parts += [model.optimizer, *tf.nest.flatten(model.loss), *model.metrics]
    for part in parts:
        own = getattr(part, "__dict__", {})
        for value in [part, *(own[name] for name in own if name not in layer_settings.books())]:
            named = value if isinstance(value, types.FunctionType) else type(value)
            if getattr(named, "__module__", "").partition(".")[0] in ("keras", "tensorflow", "builtins", "tfgc"):
                continue
            if isinstance(value, types.FunctionType) or hasattr(value, "get_config"):
                yield keras.saving.get_registered_name(named), named
