"""A traced function as StableHLO, the portable input of XLA's compilers."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import versions

try:
    from tensorflow.python.eager.polymorphic_function import compiler_ir  # the public way wants tensors, not shapes
except ImportError as error:
    raise versions.unsupported(error) from error


def stable_hlo(function: Any, specs: Sequence[tf.TensorSpec]) -> bytes:
    """The module of a concrete function of these arguments; nothing is run.

    Raises:
        ValueError: As TensorFlow says it, if XLA has no kernel for an operation.
    """
    flat: Any = list(specs)
    return compiler_ir.from_concrete_function(function, flat)(stage="stablehlo_serialized")
