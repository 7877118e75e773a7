"""The peak of TensorFlow's allocator while a model trains, shown by Keras and compared with the plan's prediction."""

import weakref
from typing import TYPE_CHECKING, Any

import keras

from tfgc._errors import TfgcError, UncountedMemoryWarning, warn
from tfgc._framework import memory_counts
from tfgc._framework.model_checks import check_backend
from tfgc._planning import budgets
from tfgc._training.stand_ins import predicted_bytes
from tfgc._units import format_bytes, format_percent

if TYPE_CHECKING:  # Keras's stands behind a decorator without types

    class _Callback:
        model: Any
        params: Any

else:
    _Callback = keras.callbacks.Callback

KEY = "peak_memory_mb"
# Keras and TensorFlow trace the step on the first batch, and again on the second if the first one made variables.
_LEFT_OUT = 2
_measured: weakref.WeakKeyDictionary[keras.Model, int] = weakref.WeakKeyDictionary()
# The most bytes that a step of a model needed when it last trained with `PeakMemory`; None if it has not.
measured_bytes = _measured.get


class PeakMemory(_Callback):
    """A callback that shows the peak memory of training in the progress bar, `History`, `TensorBoard` and `CSVLogger`.

    At the end of each epoch it adds `peak_memory_mb` to `logs`: the most memory, in units of 10**6 bytes, that
    TensorFlow's allocator had handed out at once while a batch of that epoch was trained on. Of several GPUs it is that
    of the one with the largest peak; without a GPU it is that of the CPU. All that TensorFlow holds on the device
    counts: weights, optimizer slots, and on a CPU also arrays given to `fit`. Tensors of less than 256 KiB on a CPU are
    left out, as TensorFlow does not count them.

    Validation does not count. Nor do the first two batches of `fit`, on which TensorFlow makes the optimizer's slots
    and traces the step, unless there are no others. With `steps_per_execution=n`, n batches are measured as one.

    When training ends, one line says how much the step needed and, for an enabled model whose plan knows the batch
    size, what was predicted for the mode of `fit`: not for a plan by calls that was given to a subclassed model, whose
    other sizes it does not know. What is measured leaves out what is no part of the step: what was held before a batch,
    other than weights and optimizer slots. On a CPU it takes in batches that the pipeline of `fit` makes meanwhile,
    which no prediction counts. `fit(verbose=0)` prints nothing.

    Where TensorFlow does not count memory, as on CPUs for which it has no kernels of oneDNN, nothing is shown, and an
    `UncountedMemoryWarning` says how to have it counted.

    Other callbacks in the list see the value if they come after this one; `History` and the progress bar always do.

    Attributes:
        step_bytes: After training, the most bytes that a step needed; None if no batch was trained on, or not counted.
        predicted_bytes: What the plan predicts for it, or None.

    Example:
        >>> import keras, numpy as np, tfgc
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(256), keras.layers.Dense(1)])
        >>> model.compile("adam", "mse")
        >>> x, y = np.ones((512, 8)), np.ones((512, 1))
        >>> history = model.fit(x, y, batch_size=512, verbose=0, callbacks=[tfgc.PeakMemory()])
        >>> history.history["peak_memory_mb"][0] > 0
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self.step_bytes: int | None = None
        self.predicted_bytes: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        check_backend(f"{self.model.name!r}")
        self._devices = memory_counts.devices()
        # What was handed out at the peak of a call of the train function, and the most of it that a step needed.
        self._calls = self._of_first = self._of_epoch = self._first_step = self._most = 0
        try:
            self._peaks = memory_counts.Peaks(self._devices)
        except TfgcError as error:
            warn(f"tfgc.PeakMemory shows nothing: {error}", UncountedMemoryWarning)
            self._devices = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._of_epoch = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._calls <= _LEFT_OUT:
            self._held = budgets.resident_bytes(self.model)
        self._peaks = memory_counts.Peaks(self._devices)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        peaks = self._peaks.close()
        if not peaks:
            return
        step = max(peak - self._peaks.held[device] for device, peak in peaks.items()) + self._held
        self._calls += 1
        if self._calls <= _LEFT_OUT:
            self._of_first, self._first_step = max(peaks.values()), step
        else:
            self._of_epoch, self._most = max(self._of_epoch, *peaks.values()), max(self._most, step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._calls and logs is not None:
            logs[KEY] = (self._of_epoch or self._of_first) / 1e6

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if not self._calls:
            return
        self.step_bytes = _measured[self.model] = self._most or self._first_step
        self.predicted_bytes = predicted_bytes(self.model)
        if (self.params or {}).get("verbose") != 0:
            print(_line(self.model.name, self.step_bytes, self.predicted_bytes))


def _line(name: str, measured: int, predicted: int | None) -> str:
    line = f"tfgc: a step of {name!r} needed {format_bytes(measured)}"
    if predicted is None:
        return line
    share = format_percent(measured / predicted, ".0f")
    return f"{line}, {share} of the {format_bytes(predicted)} that its plan predicts"
