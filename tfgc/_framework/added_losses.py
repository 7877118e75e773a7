"""The losses that layers add in their calls, and which layer adds which."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import keras

from tfgc._framework import versions
from tfgc._framework.diverted_calls import DivertedCalls
from tfgc._framework.versions import attribute

_ADDED = DivertedCalls(keras.Layer, "add_loss")


@contextlib.contextmanager
def losses_noted() -> Iterator[list[tuple[keras.Layer, Any]]]:
    """A list of the losses that layers add in this thread, each with its layer; they forget them behind it."""
    found: list[tuple[keras.Layer, Any]] = []

    def add(layer: keras.Layer, loss: Any) -> None:
        before = len(attribute(layer, "_losses"))
        _ADDED.original(layer, loss)
        found.extend((layer, each) for each in attribute(layer, "_losses")[before:])

    try:
        with _ADDED.to(add):
            yield found
    finally:
        for layer, loss in found:
            losses = attribute(layer, "_losses")
            losses[:] = [each for each in losses if each is not loss]
            forget_loss(layer, loss)


def clear_losses(layer: keras.Layer) -> None:
    """Let a layer forget the losses of its last call, as it does where it is the outermost that is called."""
    attribute(layer, "_clear_losses")()


def maker_of_loss() -> keras.Layer:
    """The layer whose `add_loss` calls the `add_loss` of a `StatelessScope`, for the latter: Keras does not pass it."""
    caller = sys._getframe(2).f_locals.get("self")
    if caller is None:
        raise versions.unsupported("the caller of StatelessScope.add_loss has no `self`")
    return caller


def remember_loss(layer: keras.Layer, loss: Any) -> None:
    """Let a layer know that it made a loss."""
    attribute(layer, "_loss_ids").add(id(loss))


def forget_loss(layer: keras.Layer, loss: Any) -> None:
    """Let a layer forget that it made a loss: it remembers losses by id, and ids are used again."""
    attribute(layer, "_loss_ids").discard(id(loss))
