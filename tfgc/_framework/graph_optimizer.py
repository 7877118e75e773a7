"""TensorFlow's graph optimizer, which fuses operations of one graph and not of another, and so rounds them apart."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

_OPTION = "disable_meta_optimizer"


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Run what is traced in here as it was traced."""
    before = tf.config.optimizer.get_experimental_options().get(_OPTION, False)
    tf.config.optimizer.set_experimental_options({_OPTION: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({_OPTION: before})
