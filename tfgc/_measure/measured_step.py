"""What a training step by a plan needs when it is run in a child process."""

from collections.abc import Mapping
from typing import Any

import keras

from tfgc._core.plan import Plan
from tfgc._errors import OptionError, TfgcError
from tfgc._measure import compare, examples, shipped
from tfgc._records.job import Case


def peak_bytes(model: keras.Model, plan: Plan, confirm: Any, common: Mapping[str, Any]) -> int:
    """The most that one of five steps needs on top of what stays between them, as TensorFlow's allocator reports it.

    Args:
        model: The model; a copy of it is trained.
        plan: Its plan.
        confirm: True, or a function that builds the model.
        common: The arguments of `tfgc.plan` that say what the step is.

    Raises:
        OptionError: If the plan is for no batch size.
        TfgcError: If the step cannot be run there.
    """
    if plan.batch_size is None:
        raise OptionError(f"{shipped.label(confirm)}: give a batch_size, since a step of one batch is measured")
    optimizer, loss = common["optimizer"], common["loss"]
    case = Case(
        model.name,
        (shipped.shipped(model, confirm, optimizer, loss), None),
        "confirm",
        common["mode"],
        plan.batch_size,
        plan=plan.to_json(),
        example=examples.portable(
            shipped.batch(model, plan.batch_size, common["input_shapes"], common["example"], loss)
        ),
    )
    record = compare.run(case)
    if record.peak_bytes_max is None:
        raise TfgcError(
            f"{shipped.label(confirm)}: a step of {model.name!r} cannot be run in a child process: "
            f"{record.status}, {record.detail}{shipped.advice(confirm, '. If it cannot be built there, ')}"
        )
    return record.peak_bytes_max
