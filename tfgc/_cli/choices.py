"""The network and the plan that the options of a shell command name."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict

import click

from tfgc._error_texts import one_line
from tfgc._errors import OptionError
from tfgc._terminal import printable

if TYPE_CHECKING:
    import keras

    from tfgc._core.plan import Plan

Settings = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class NetworkChoice:
    """A network, its input sizes, and its batch size where a command takes one."""

    name: str
    image_size: int | None
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    example: str | None
    batch_size: int = 0

    def __post_init__(self) -> None:
        """Raise what is wrong before TensorFlow is imported, which takes seconds."""
        from tfgc import _user_modules
        from tfgc.zoo import _catalogue

        _user_modules.install([os.getcwd()])
        _catalogue.check(self.name, self.image_size)
        if self.example is not None:
            with _catalogue.importing("--example", self.example):
                _user_modules.check(self.example.partition(":")[0])

    def sizes(self) -> dict[str, Any]:
        """What says its sizes, as `tfgc.compare` and `tfgc.max_batch` take it."""
        batch = None if self.example is None else _batch(self.example)
        return {"image_size": self.image_size, "input_shapes": dict(self.inputs) or None, "example": batch}

    def open(self) -> tuple[keras.Model, dict[str, Any]]:
        """Build the model; return it with what says its sizes: `input_shapes` or `example`, as for `tfgc.plan`."""
        import_quietly()
        from tfgc import zoo
        from tfgc._measure import any_model, examples
        from tfgc._planning import ahead

        model, shapes = zoo.build(self.name, self.image_size), dict(self.inputs) or None
        if self.example is not None:
            example = examples.portable(_batch(self.example))
            any_model.check(model)
            return model, {"example": examples.batch(example, self.batch_size), "input_shapes": shapes}
        if ahead.applies_to(model):
            raise OptionError(
                f"{self.name!r} is a subclassed model ({type(model).__name__}): name a function that returns a batch "
                "for it, x or (x, y), as in --example my_module:batch"
            )
        return model, {"input_shapes": shapes}


def _batch(name: str) -> Any:
    """What the function returns that `--example` names as `module:function`."""
    import_quietly()
    from tfgc import _user_modules
    from tfgc.zoo import _catalogue

    with _catalogue.importing("--example", name):
        made: Any = _user_modules.function(name)
    try:
        return made()
    except (Exception, SystemExit) as error:  # the user's code
        raise OptionError(f"--example {name!r} cannot be called: {one_line(error)}") from error


@dataclasses.dataclass(frozen=True)
class PlanChoice:
    """How to make a plan."""

    budget: str | None
    strategy: str | None
    strategy_options: Settings
    plan_path: str | None = None

    def __post_init__(self) -> None:
        """Raise what is wrong before TensorFlow is imported."""
        if self.plan_path is None and self.is_given:
            from tfgc import strategies
            from tfgc._units import check_budget

            strategy, options = self._chosen()
            strategies.check_options(strategy or self._default, options, self.budget)
            if self.budget is not None:
                check_budget(self.budget)

    @property
    def _default(self) -> str:
        return "optimal" if self.budget is None else "budget"

    def _chosen(self) -> tuple[str | None, dict[str, Any]]:
        return chosen_strategy(self.strategy, self.strategy_options, self._default)

    @property
    def is_given(self) -> bool:
        """Whether any of the options was given."""
        return bool(self.budget or self.strategy or self.strategy_options)

    def read(self) -> Plan | None:
        """Read the plan file, None if none is named; options to make a plan are then an error."""
        from tfgc._core.plan import Plan

        if self.plan_path is None:
            return None
        if self.is_given:
            flag = "--budget" if self.budget else "--strategy" if self.strategy else "--option"
            raise OptionError(f"give --plan, or {flag} to make one, not both")
        return Plan.load(self.plan_path)

    def make(self, model: keras.Model, batch_size: int, **common: Any) -> Plan:
        """Make a plan."""
        from tfgc._measure import confirmed

        strategy, options = self._chosen()
        return confirmed.plan(model, batch_size, strategy=strategy, budget=self.budget, **common, **options)


class Costs(TypedDict):
    """What memory and work are counted for, as arguments of `tfgc.plan`."""

    optimizer: str | None
    mode: str


def chosen_strategy(text: str | None, settings: Settings, default: str) -> tuple[str | None, dict[str, Any]]:
    """The strategy that `--strategy` names and its options: those that it, or else the default, takes."""
    from tfgc import strategies

    name, more = (None, {}) if text is None else strategies.named(text)
    options = {**more, **dict(settings)}
    strategies.check_names(name or default, options)
    return name, options


def import_quietly() -> None:
    """Import TensorFlow and list devices without its banner, which it prints before it reads TF_CPP_MIN_LOG_LEVEL."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import tensorflow as tf

        tf.config.list_physical_devices()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Print tfgc's warnings like its errors, each in a line."""
    from tfgc._errors import NotReplayableWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", NotReplayableWarning)
        warnings.showwarning = lambda message, *_, **__: click.echo(f"tfgc: {printable(str(message))}", err=True)
        yield
