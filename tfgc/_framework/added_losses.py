"""The losses that layers add in their calls, and which layer adds which."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tfgc._framework import keras_models
from tfgc._framework.diverted_calls import DivertedCalls
from tfgc._framework.versions import attribute

_ADDED = DivertedCalls(keras.Layer, "add_loss")


@contextlib.contextmanager
def losses_noted() -> Iterator[list[tuple[keras.Layer, Any]]]:
    """A list of the losses that layers add in this thread, each with its layer; they forget them behind it."""
    found: list[tuple[keras.Layer, Any]] = []

    def add(layer: keras.Layer, loss: Any) -> None:
        _ADDED.original(layer, loss)
        found.extend((layer, each) for each in keras.tree.flatten(loss))

    try:
        with _ADDED.to(add):
            yield found
    finally:
        for layer, loss in found:
            losses = attribute(layer, "_losses")
            losses[:] = [each for each in losses if each is not loss]
            # In a `StatelessScope` it remembers losses by id, and ids are used again.
            attribute(layer, "_loss_ids").discard(id(loss))


def clear_losses(layer: keras.Layer) -> None:
    """Let a layer forget the losses of its last call, as it does where it is the outermost that is called."""
    attribute(layer, "_clear_losses")()


@contextlib.contextmanager
def losses_put_back(model: keras.Model) -> Iterator[None]:
    """Leave the losses that layers hold as they were before."""

    def books() -> Iterator[Any]:
        for layer in keras_models.layers_inside(model):
            yield from (attribute(layer, "_losses"), attribute(layer, "_loss_ids"))

    before = [(book, book.copy()) for book in books()]
    try:
        yield
    finally:
        for book in books():
            book.clear()
        for book, held in before:
            (book.extend if isinstance(book, list) else book.update)(held)
