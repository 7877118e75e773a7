"""The losses of several outputs, as Keras reports them beside their sum."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tfgc._framework.replaced import replaced
from tfgc._framework.versions import attribute


@contextlib.contextmanager
def weighted(trainer: keras.Model, samples: Any) -> Iterator[None]:
    """Count the losses in here by so many samples.

    Keras counts by the size of the batch where a trace knows it, and by 1 where it does not, as in a loop over slices.
    """
    compiled = attribute(trainer, "_compile_loss")
    if compiled is None:
        yield
        return
    with contextlib.ExitStack() as stack:

        def weigh() -> None:
            for tracker in compiled.metrics:
                update = functools.partial(_update, tracker.update_state, samples)
                stack.enter_context(replaced(tracker, "update_state", update))

        def built(y_true: Any, y_pred: Any) -> None:
            build(y_true, y_pred)
            weigh()

        build = compiled.build
        if compiled.built:
            weigh()
        else:  # The first call makes the trackers and then updates them.
            stack.enter_context(replaced(compiled, "build", built))
        yield


def _update(update: Callable, samples: Any, values: Any, sample_weight: Any = None) -> Any:
    return update(values, sample_weight=samples)
