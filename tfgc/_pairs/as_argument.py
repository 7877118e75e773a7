"""A function as an argument of a `tf.function`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Itself(tf.types.experimental.TraceType):
    """How `tf.function` takes a recomputed function as an argument: as a value, each of which gets a new trace."""

    function: Callable

    def is_subtype_of(self, other: Any) -> bool:
        return self == other

    def most_specific_common_supertype(self, others: Any) -> "Itself | None":
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Callable:
        return self.function
