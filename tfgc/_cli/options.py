"""What shell commands share: options, building the named model, making plans, JSON output."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from tfgc import _files
from tfgc._cli import files, values
from tfgc._errors import OptionError

if TYPE_CHECKING:
    import keras

    from tfgc._core.plan import Plan

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

Command = files.Command
read, written = files.Read, files.Written
INPUT, OUTPUT, PICTURE = files.Input(), files.Output(), files.Output(".png")
_NAME = click.argument("name", type=files.Network(), shell_complete=lambda context, option, text: networks(text))
_MODEL = (
    _NAME,
    click.option("--batch-size", type=int, required=True, help="Samples per batch."),
    click.option("--image-size", type=int, help="Image height and width, for networks that accept it."),
    click.option(
        "--input", "inputs", multiple=True, type=values.InputShape(), metavar="NAME=128,64",
        help="Shape, without the batch, of an input whose size the model leaves open; repeatable.",
    ),
)  # fmt: skip
_COSTS = (
    click.option("--measure", is_flag=True, help="Time each node on this device and count seconds instead of flops."),
    click.option("--optimizer", help="Optimizer whose state is counted.  [default: adam]"),
)
_PLAN = (
    click.option("--budget", help="Memory for the whole step: 2GB, 60% (of the plain step), or auto (free memory)."),
    click.option("--strategy", help="Planning strategy.  [default: budget if --budget is given, else optimal]"),
    click.option(
        "--option", "strategy_options", multiple=True, type=values.Setting(), metavar="KEY=VALUE",
        help="Strategy option: a number, true, false, or comma-separated names; repeatable.",
    ),
)  # fmt: skip


_JSON = (
    click.option(
        "--json", "json_path", is_flag=False, flag_value="-", metavar="[FILE]", is_eager=True,
        callback=lambda context, option, path: _json_path(path),
        help="Print JSON instead of tables, or write it to a .json FILE and print the tables.",
    ),
)  # fmt: skip


def networks(text: str) -> list[str]:
    """Names of networks that begin with `text`, for shell completion."""
    from tfgc.zoo import catalogue

    return [network.name for network in catalogue() if network.name.startswith(text)]


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a network, its batch size and its input sizes to a command."""
    return _with(_MODEL, command)


def name_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument for a network to a command."""
    return _NAME(command)


def cost_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for how costs are counted to a command."""
    return _with(_COSTS, command)


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the planning options to a command."""
    return _with(_PLAN, command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, with or without a file, to a command."""
    return _with(_JSON, command)


def _json_path(path: str | None) -> str | None:
    """Check the file that `--json` names: without the check it would swallow the next word."""
    if path is None or path == "-":
        return path
    if not path.endswith(".json"):
        raise click.BadParameter(f"{path!r} does not end in .json; to print, let --json be the last option")
    return files.Written(path)


def emit_json(content: Any, path: str | None) -> bool:
    """Write `content` where `--json` says; return whether that replaces the other output of the command."""
    if path is None:
        return False
    from tfgc._records import measurement

    text = (
        measurement.to_json(content)
        if isinstance(content, measurement.Results)
        else json.dumps(content, indent=1) + "\n"
    )
    if path == "-":
        click.echo(text, nl=False)
        return True
    _files.write(path, text)
    return False


def this_command() -> str:
    """The command as the user wrote it."""
    return shlex.join(["tfgc", *sys.argv[1:]])


def _with(options: Sequence[Decorator], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def open_model(
    name: str, image_size: int | None, inputs: values.Shapes
) -> tuple[keras.Model, dict[str, tuple[int, ...]] | None]:
    """Build a named model; return it with its input shapes."""
    sizes = dict(inputs)
    import_quietly()
    from tfgc import _user_modules, zoo
    from tfgc._tracing import keras_graph

    _user_modules.install([os.getcwd()])
    model = zoo.build(name, image_size)
    for tensor in keras_graph.functional_of(model).inputs:
        if None in tensor.shape[1:] and tensor.name not in sizes:
            example = ",".join(str(128 if size is None else size) for size in tensor.shape[1:])
            raise OptionError(
                f"input {tensor.name!r} of {name!r} has the shape {tuple(tensor.shape)}, with unknown sizes besides "
                f"the batch: give its size without the batch, as in --input {tensor.name}={example}"
            )
    return model, sizes or None


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
    from tfgc._errors import NotReplayableWarning, OpenSizesWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", NotReplayableWarning)
        warnings.simplefilter("always", OpenSizesWarning)
        warnings.showwarning = lambda message, *_, **__: click.echo(f"tfgc: {message}", err=True)
        yield


def read_plan(
    path: str | None, budget: str | None, strategy: str | None, strategy_options: values.Settings
) -> Plan | None:
    """Read a plan file, None if none is named; options to make a plan are then an error."""
    from tfgc._core import plan

    if path is None:
        return None
    for flag, given in (("--budget", budget), ("--strategy", strategy), ("--option", strategy_options)):
        if given:
            raise OptionError(f"give --plan, or {flag} to make one, not both")
    return plan.read(path)


def make_plan(
    model: keras.Model,
    batch_size: int | None,
    budget: str | None,
    strategy: str | None,
    strategy_options: values.Settings,
    **common: Any,
) -> Plan:
    """Make a plan by the options."""
    from tfgc import strategies
    from tfgc._planning import planner

    chosen = dict(strategy_options)
    if strategy is not None:
        strategy, more = strategies.named(strategy)
        chosen = {**more, **chosen}
    return planner.plan(model, batch_size, strategy=strategy, budget=budget, **common, **chosen)
