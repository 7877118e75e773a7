"""Every error and warning that tfgc raises on purpose.

A message quotes what the user wrote, says what is wrong with it, and what to do instead.
"""

import contextlib
import copyreg
import difflib
import operator
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any


class TfgcError(Exception):
    """Base of all errors of tfgc; catch it to catch them all."""

    if not TYPE_CHECKING:
        # AutoGraph raises an error of a traced function again under its type only if that has Exception's __init__.
        __init__ = Exception.__init__

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception would call the class with the message, which is not what a subclass with other arguments takes.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # pyright: ignore[reportAttributeAccessIssue]


class OptionError(TfgcError, ValueError):
    """An invalid argument: unknown, out of range or not applicable."""


class UnsupportedModelError(TfgcError, TypeError):
    """A model, layer or call that tfgc cannot run in segments."""


class PlanMismatchError(TfgcError):
    """A plan that belongs to another model, or does not cover this one."""


class InfeasibleBudgetError(TfgcError):
    """No plan fits in the budget; the message names the least that works.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="dense")])
        >>> try:
        ...     plan = tfgc.plan(model, batch_size=32, budget=1000)
        ... except tfgc.InfeasibleBudgetError as error:
        ...     print(error.budget, error.least > 1000, error.node)
        1000 True Mean
    """

    if TYPE_CHECKING:  # `args` holds these, or the message alone of an error that was raised again.

        def __init__(
            self, budget: int, least: int, node: str, also: str = "", instead: str = "a smaller batch or input", /
        ) -> None: ...

    def __str__(self) -> str:
        if len(self.args) == 1:
            return str(self.args[0])
        budget, least, node, also, instead = (*self.args, *("", "a smaller batch or input")[len(self.args) - 3 :])
        return (
            f"no plan fits in {budget:,} bytes{also}: the smallest budget that works is {least:,} bytes, set by node "
            f"{node!r}. Use {instead}, or that budget"
        )

    @property
    def budget(self) -> int:
        """The requested bytes."""
        return self._figures()[0]

    @property
    def least(self) -> int:
        """The bytes of the smallest budget that works."""
        return self._figures()[1]

    @property
    def node(self) -> str:
        """The node that runs at the peak of that plan."""
        return self._figures()[2]

    def _figures(self) -> tuple[int, int, str]:
        if len(self.args) != 1:
            return self.args[:3]
        words = str(self).replace(",", "")
        found = re.findall(r"fits in (\d+) bytes.*?works is (\d+) bytes set by node '([^']*)'", words)[0]
        return int(found[0]), int(found[1]), found[2]


class NotReplayableWarning(UserWarning):
    """A function cannot be run twice safely, so it is not recomputed."""


class StaleTraceWarning(UserWarning):
    """A `tf.function` of the user was traced before a model was enabled or disabled, and keeps running as before."""


class NothingSavedWarning(UserWarning):
    """A plan does not save what it could: no plan saves a noticeable part, or no accelerator offloads to the host."""


class OutOfMemoryWarning(UserWarning):
    """A step ran out of memory, and runs again by a plan that needs less."""


class UncountedMemoryWarning(UserWarning):
    """TensorFlow does not count the memory of a device, so that none can be shown."""


_collecting = threading.local()


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[tuple[str, type[Warning]]]]:
    """Collect what `warn` is given in this thread, as its arguments, to be warned of where the user called."""
    before, _collecting.into = getattr(_collecting, "into", None), []
    try:
        yield _collecting.into
    finally:
        _collecting.into = before


def warn(message: str, category: type[Warning]) -> None:
    """Warn, pointing at the line outside of tfgc, Keras and TensorFlow that called into them."""
    into = getattr(_collecting, "into", None)
    if into is not None:
        into.append((message, category))
        return
    frame, level = sys._getframe(1), 2
    while frame is not None and _is_library(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_library(frame: FrameType) -> bool:
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package in {"tfgc", "keras", "tensorflow", "contextlib"} or "autograph_generated" in frame.f_code.co_filename


def check_int(name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int of 64 bits, or say what `name` must be."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise OptionError(f"{name}={value!r}: must be an integer >= {least}")
    if number >= 2**63:
        raise OptionError(f"{name}: must be an integer >= {least} and < 2**63, not one of {number.bit_length()} bits")
    return number


def check_bool(name: str, value: Any) -> bool:
    """Return `value` if it is True or False, or say that `name` must be.

    >>> check_bool("nested", False)
    False
    """
    if not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: must be True or False")
    return value


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a hint such as ``; did you mean 'conv2'?`` or an empty string.

    >>> did_you_mean("sqr", ["sqrt", "uniform"])
    "; did you mean 'sqrt'?"
    """
    matches = difflib.get_close_matches(str(name), [str(k) for k in known])
    return "; did you mean " + " or ".join(map(repr, matches)) + "?" if matches else ""
