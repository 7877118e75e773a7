"""Where a plan that names layers cuts a step: behind the last operation of each call."""

from typing import Any

from tfgc._errors import OptionError, did_you_mean
from tfgc._step.step import Step
from tfgc.strategies import manual


def ends(step: Step, keep: Any) -> list[int]:
    """The operations behind which calls of some layers end, which are given by their paths; or operations by name.

    Raises:
        OptionError: If something is not named, or there is nothing of that name in the step.
    """
    names, found = manual.check(keep), list[int]()
    operations = {op.name: (number,) for number, op in step.ops.items()}
    for name in names:
        calls = step.layers.get(name) or operations.get(name)
        if calls is None:
            raise OptionError(f"keep: there is no layer {name!r} in the model{did_you_mean(name, step.layers)}")
        found += calls
    return found
