"""TensorFlow's graph optimizer, which fuses operations of one graph and not of another, and so rounds them apart."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_OPTION = "disable_meta_optimizer"
KEPT = "_grappler_do_not_remove"  # of operations that it is to leave where they are


def is_off() -> bool:
    """Whether it is off now."""
    return tf.config.optimizer.get_experimental_options().get(_OPTION, False)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Run what is traced in here as it was traced."""
    before = is_off()
    tf.config.optimizer.set_experimental_options({_OPTION: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({_OPTION: before})


def leave(node: Any) -> None:
    """Let the optimizer leave a node of a GraphDef where it is."""
    node.attr[KEPT].b = True
