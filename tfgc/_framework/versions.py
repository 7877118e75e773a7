"""The versions of TensorFlow and Keras whose private parts tfgc can read, and the error for all others."""

import contextlib
import inspect
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import TfgcError

SUPPORTED = "TensorFlow >= 2.19 and Keras >= 3.10"
TESTED = "TensorFlow 2.21 and Keras 3.15"


def unsupported(missing: object) -> TfgcError:
    """The error for a private module, name or attribute that is not there."""
    return TfgcError(
        f"{missing}: tfgc reads private parts of TensorFlow and Keras that TensorFlow {tf.__version__} with Keras "
        f"{keras.__version__} does not have. It supports {SUPPORTED}, tested up to {TESTED}: install one of these, or "
        "a newer tfgc"
    )


def kept_by_name(module: ModuleType, name: str) -> str:
    """A name under which a module of Keras keeps something of the thread; Keras gives None for others, and no error."""
    with contextlib.suppress(OSError):  # installed without sources
        if f'"{name}"' not in inspect.getsource(module):
            raise unsupported(f"{module.__name__} keeps no {name!r}")
    return name


def attribute(thing: Any, name: str) -> Any:
    """A private attribute of something of TensorFlow or Keras; raises `unsupported` if this version has none."""
    try:
        return getattr(thing, name)
    except AttributeError as error:
        raise unsupported(error) from error
