"""Networks to measure on: families that `keras.applications` lacks, one a file.

A model is named as a network of this folder (`sample_cnn`, `big_cnn(3, 9)`), as one of `keras.applications`
(`resnet50`), as `module:function` that builds one, or as a saved `.keras` file. Weights are never downloaded.
"""

from __future__ import annotations

import importlib
import inspect
import re
import reprlib
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from tfgc import _user_modules
from tfgc._error_texts import one_line
from tfgc._errors import OptionError, TfgcError
from tfgc.zoo import _catalogue
from tfgc.zoo._catalogue import catalogue

if TYPE_CHECKING:
    import keras

__all__ = ["available", "build", "catalogue"]

# Errors of Keras that hold another one.
_WRAPPED = "could not be deserialized properly|^Error when deserializing class"


def available() -> dict[str, Callable[..., keras.Model]]:
    """Mapping from the name of each network of this folder to its builder.

    >>> "unet" in available()
    True
    """
    return {network.name: _builder(network) for network in catalogue() if network.family}


def build(name: str, image_size: int | None = None) -> keras.Model:
    """Build the model that `name` names.

    Args:
        name: A network of `tfgc.zoo` (`sample_cnn`, `big_cnn(3, 9)`) or of `keras.applications` (`resnet50`),
            `module:function` that builds a model, or a saved `.keras` file.
        image_size: Height and width of the input images, for networks that accept it.

    Raises:
        OptionError: For an unknown name, with near ones.
        TfgcError: If what it names cannot be built or loaded.

    Example:
        >>> import tfgc
        >>> tfgc.zoo.build("sample_cnn", image_size=16).input_shape
        (None, 16, 16)
    """
    found = _catalogue.check(name, image_size)
    if name.endswith(".keras"):
        return _saved(name)
    if found is None:
        with _catalogue.importing("the builder", name):
            builder, arguments = cast("Callable[..., keras.Model]", _user_modules.function(name)), []
    else:
        builder, arguments = _builder(found[0]), found[1]
    made = _attempt(name, lambda: _call(builder, arguments, image_size, name))
    return checked(name, made) if found is None else made


def _builder(network: _catalogue.Network) -> Callable[..., keras.Model]:
    """The function that builds a network."""
    if network.family:
        return getattr(importlib.import_module(f"{__name__}.{network.family}"), network.name)
    import keras

    own: Any = next(f for name, f in vars(keras.applications).items() if name.lower() == network.name and callable(f))
    return lambda image_size=None: own(weights=None, input_shape=image_size and (image_size, image_size, 3))


def _attempt(name: str, build: Callable[[], keras.Model]) -> keras.Model:
    """Build or load a model; report in one line what the user's or Keras's code raises."""
    from tfgc._framework import model_checks

    model_checks.check_backend(f"{name!r}")
    try:
        return build()
    except TfgcError:
        raise
    except (Exception, SystemExit) as error:
        raise TfgcError(f"{name!r} cannot be built: {one_line(error)}") from error


def _saved(name: str) -> keras.Model:
    """Load a saved model in Keras's safe mode, which runs no code that the file holds."""
    import keras

    from tfgc._framework import model_loading

    try:
        with model_loading.ending():
            return checked(name, keras.models.load_model(name, compile=False))
    except TfgcError:
        raise
    except Exception as error:
        why: BaseException = error
        while isinstance(why.__context__, Exception) and re.search(_WRAPPED, str(why)):
            why = why.__context__  # of a layer inside
        said = textwrap.shorten(one_line(why).partition(". ")[0], 400)
        raise TfgcError(
            f"{name!r} cannot be loaded: {said}; if the file is whole and you trust it, name a function that loads it, "
            "as in my_module:load"
        ) from error


def checked(builder: str | Callable[..., Any], built: Any) -> keras.Model:
    """What a builder returned, or a name stands for, which has to be a model."""
    import keras

    from tfgc._framework import model_checks

    if not isinstance(built, keras.Model):
        name, why = getattr(builder, "__name__", builder), model_checks.instead_of_model(built)
        raise OptionError(f"{name!r} must return a keras.Model, it returned {reprlib.repr(built)}: {why}")
    model_checks.check_model(built)
    return built


def _call(
    builder: Callable[..., keras.Model], arguments: Sequence[int | None], image_size: int | None, name: str
) -> keras.Model:
    try:
        inspect.signature(builder).bind(*arguments)
    except TypeError as error:
        raise OptionError(f"{name!r}: {error}; it takes {inspect.signature(builder)}") from error
    if image_size is None:
        return builder(*arguments)
    if "image_size" not in inspect.signature(builder).parameters:
        _catalogue.refuse(image_size, name, "it takes no image_size")
    return builder(*arguments, image_size=image_size)
