"""The losses of several outputs, as Keras reports them beside their sum."""

import contextlib
from collections.abc import Iterator
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
        if compiled.built:
            _weight(compiled.metrics, samples, stack)
        else:
            stack.enter_context(replaced(compiled, "build", _Build(compiled, samples, stack)))
        yield


def _weight(trackers: list[Any], samples: Any, stack: contextlib.ExitStack) -> None:
    for tracker in trackers:
        stack.enter_context(replaced(tracker, "update_state", _Update(tracker, samples)))


class _Build:
    """Replaces `build` of the compiled loss, whose first call makes the trackers and then updates them."""

    def __init__(self, compiled: Any, samples: Any, stack: contextlib.ExitStack) -> None:
        self._build, self._compiled, self._samples, self._stack = compiled.build, compiled, samples, stack

    def __call__(self, y_true: Any, y_pred: Any) -> None:
        self._build(y_true, y_pred)
        _weight(self._compiled.metrics, self._samples, self._stack)


class _Update:
    """Replaces `update_state` of a tracker."""

    def __init__(self, tracker: Any, samples: Any) -> None:
        self._update, self._samples = tracker.update_state, samples

    def __call__(self, values: Any, sample_weight: Any = None) -> Any:
        return self._update(values, sample_weight=self._samples)
