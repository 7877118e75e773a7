"""What steps were measured to need while a model trains, shown by Keras and compared with the plan."""

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import keras

from tfgc._errors import TfgcError, UncountedMemoryWarning, warn
from tfgc._framework import memory_counts
from tfgc._framework.model_checks import check_backend
from tfgc._planning import budgets
from tfgc._training.stand_ins import changes_of, promised_bytes
from tfgc._units import format_measured

if TYPE_CHECKING:  # Keras's stands behind a decorator without types

    class _Callback:
        model: Any
        params: Any

else:
    _Callback = keras.callbacks.Callback

KEY = "peak_memory_mb"
# Keras and TensorFlow trace the step on the first batch, and again on the second if the first one made variables.
_LEFT_OUT = 2


class Measured(NamedTuple):
    """What a step needed most, what the plan predicted for it, and the budget of that; None where there is none."""

    step_bytes: int
    predicted_bytes: int | None
    budget_bytes: int | None

    def __str__(self) -> str:
        return format_measured(*self)


_measured: weakref.WeakKeyDictionary[keras.Model, Measured] = weakref.WeakKeyDictionary()
# Of the training of a model by `PeakMemory` that came last; None if there was none.
measured = _measured.get


def forget(model: keras.Model) -> None:
    """Forget what was measured before a model is enabled otherwise."""
    _measured.pop(model, None)


class PeakMemory(_Callback):
    """A callback that shows what a training step needs, in the progress bar, `History`, `TensorBoard` and `CSVLogger`.

    At the end of each epoch it adds `peak_memory_mb` to `logs`: the most, in units of 10**6 bytes, that a step of that
    epoch needed on the device, which is what a budget is compared with. It consists of the weights and optimizer slots,
    and of what TensorFlow's allocator handed out on top of what it held before the step. Other tensors that were there
    before, such as arrays given to `fit` on a CPU, are no part of it. On a CPU batches that the pipeline of `fit` makes
    meanwhile are. Of several GPUs it is that of the one that needs most; without a GPU it is that of the CPU.

    On CPUs the allocator's peak does not see tensors below 256 kB, which come from another allocator: a step of many
    small tensors is shown as next to nothing.

    Validation does not count. Nor do the first two batches of `fit`, on which TensorFlow makes the optimizer's slots
    and traces the step, unless there are no others. With `steps_per_execution=n`, n batches are measured as one.

    When training ends, one line says how much a step needed: of the budget, and by how much that was missed; without a
    budget of what the plan of an enabled model predicts for the mode of `fit`, where that knows the sizes.
    `fit(verbose=0)` prints nothing; `tfgc.status` says the same.

    Where TensorFlow does not count memory, as on CPUs for which it has no kernels of oneDNN, nothing is shown, and an
    `UncountedMemoryWarning` says how to have it counted.

    Other callbacks in the list see the value if they come after this one; `History` and the progress bar always do.

    Attributes:
        step_bytes: After training, the most bytes that a step needed by its last plan; None if no batch was trained on,
            or not counted.
        predicted_bytes: What the plan predicts for it, or None.
        budget_bytes: The budget of the plan in bytes, or None.

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
        self.budget_bytes: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        check_backend(f"{self.model.name!r}")
        self._devices = memory_counts.devices()
        # Calls of the train function, and the most that a step needed: in the first ones, an epoch and all.
        self._calls = self._of_first = self._of_epoch = self._most = self._changes = 0
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
        if (changes := changes_of(self.model)) != self._changes:
            self._changes, self._most = changes, 0  # what the plan before needed does not count
        if self._calls <= _LEFT_OUT:
            self._of_first = step
        else:
            self._of_epoch, self._most = max(self._of_epoch, step), max(self._most, step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._calls and logs is not None:
            logs[KEY] = (self._of_epoch or self._of_first) / 1e6

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if not self._calls:
            return
        found = _measured[self.model] = Measured(self._most or self._of_first, *promised_bytes(self.model))
        self.step_bytes, self.predicted_bytes, self.budget_bytes = found
        if (self.params or {}).get("verbose") != 0:
            print(f"tfgc: {self.model.name!r} trained, {found}")
