"""The versions of TensorFlow and Keras whose private parts tfgc can read, and the error for all others."""

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


def attribute(thing: Any, name: str) -> Any:
    """A private attribute of something of TensorFlow or Keras; raises `unsupported` if this version has none."""
    try:
        return getattr(thing, name)
    except AttributeError as error:
        raise unsupported(error) from error
