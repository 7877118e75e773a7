"""The options that shell commands share, and their JSON output."""

from __future__ import annotations

import functools
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from tfgc import _files
from tfgc._cli import choices, files
from tfgc._errors import OptionError, check_int
from tfgc._terminal import printable
from tfgc._units import parse_count
from tfgc.zoo._catalogue import exported

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

Command = files.Command
COUNT, INPUT, OUTPUT, PICTURE = click.IntRange(min=1), files.Input(), files.Output(), files.Output(".png")
# Strategy options that take no names: a number, bytes or a device.
_TEXTS = ("segments", "host_budget", "bandwidth")


def names(text: str | None) -> tuple[str, ...] | None:
    """Names with commas between them; None for an option that is not given.

    >>> names("sqrt:8, optimal,")
    ('sqrt:8', 'optimal')
    """
    return None if text is None else tuple(filter(None, map(str.strip, text.split(","))))


def input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """The shape of an input without the batch.

    >>> input_shape("image=32,32,3")
    ('image', (32, 32, 3))
    """
    name, _, sizes = text.rpartition("=")
    shape = [parse_count(word.strip()) or 0 for word in sizes.split(",")]
    if not name or not all(shape):
        raise OptionError(f"--input {text!r}: must be the input's name and its size without the batch: tokens=128")
    return name, tuple(shape)


def setting(text: str) -> tuple[str, Any]:
    """An option of a strategy: its name, and a number, true or false, bytes or a device, or a list of names.

    >>> [setting(text) for text in ("segments=8", "nested=false", "keep=conv1,conv2", "host_budget=2GB")]
    [('segments', 8), ('nested', False), ('keep', ['conv1', 'conv2']), ('host_budget', '2GB')]
    """
    key, _, value = text.partition("=")
    if not key or not value:
        raise OptionError(f"--option {text!r}: must be key=value, such as segments=8")
    try:
        made = json.loads(value)
    except ValueError:
        made = value if key in _TEXTS else [word.strip() for word in value.split(",")]
    return key, check_int(key, made) if key == "segments" else made


def parsed(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """The callback of an option whose value, or each of them, is parsed so."""
    return lambda context, option, value: tuple(map(parse, value)) if option.multiple else parse(value)


def _chosen(argument: str, kind: type, options: Sequence[Decorator]) -> Decorator:
    """A decorator that adds options to a command, which gets their values as one `kind` in an argument."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_choice(**given: Any) -> Any:
            choice = kind(**{field: given.pop(field) for field in inspect.get_annotations(kind) if field in given})
            return command(**{argument: choice}, **given)

        return functools.reduce(lambda made, option: option(made), reversed(options), with_choice)

    return decorate


strategy_options = click.option(
    "--option", "strategy_options", multiple=True, callback=parsed(setting), metavar="KEY=VALUE",
    help="Strategy option: a number, true, false, bytes, or comma-separated names; repeatable.",
)  # fmt: skip
optimizer = click.option(
    "--optimizer", type=click.Choice([name.lower() for name in exported("optimizers")], case_sensitive=False),
    metavar="NAME", help="Optimizer of Keras whose state is counted.  [default: adam]",
)  # fmt: skip
mode = click.option(
    "--mode", type=click.Choice(["graph", "xla"]), default="graph", show_default=True,
    help="How the step runs: in a TensorFlow graph, or compiled by XLA, as in fit on a GPU.",
)  # fmt: skip
# A command gets these as `network: NetworkChoice`, `planning: PlanChoice` and `costs: Costs`.
_name = click.argument("name", type=files.Network())
_batch_size = click.option("--batch-size", type=COUNT, required=True, help="Samples per batch.")
_sizes = (
    click.option("--image-size", type=COUNT, help="Image height and width, for networks that accept it."),
    click.option(
        "--input", "inputs", multiple=True, callback=parsed(input_shape), metavar="NAME=128,64",
        help="Shape, without the batch, of an input whose size the model leaves open; repeatable.",
    ),
    click.option(
        "--example", metavar="MODULE:FUNCTION",
        help="Function without arguments that returns a batch, x or (x, y), for a subclassed model; its samples are "
        "repeated or left out to make a batch.",
    ),
)  # fmt: skip
network_without_batch = _chosen("network", choices.NetworkChoice, (_name, *_sizes))
network_options = _chosen("network", choices.NetworkChoice, (_name, _batch_size, *_sizes))
_plan = (
    click.option("--budget", help="Memory for the whole step: 2GB, 60% (of the plain step), or auto (free memory)."),
    click.option("--strategy", help="Planning strategy.  [default: budget if --budget is given, else optimal]"),
    strategy_options,
)
_plan_file = click.option("--plan", "plan_path", type=INPUT, help="Plan file to use instead of planning options.")
plan_options = _chosen("planning", choices.PlanChoice, _plan)
plan_or_options = _chosen("planning", choices.PlanChoice, (*_plan, _plan_file))
cost_options = _chosen("costs", choices.Costs, (optimizer, mode))
json_option = click.option(
    "--json", "json_path", is_flag=False, flag_value="-", metavar="[FILE]", type=files.Output(".json", allow_dash=True),
    help="Print JSON instead of tables, or write it to a .json FILE and print the tables.",
)  # fmt: skip


def emit_json(content: Any, path: str | None) -> bool:
    """Write `content` where `--json` says; return whether that replaces the other output of the command."""
    if path is None:
        return False
    from tfgc._records import measurement, results_json

    is_results = isinstance(content, measurement.Results)
    text = results_json.to_json(content) if is_results else json.dumps(content, indent=1) + "\n"
    if path == "-":
        click.echo(text, nl=False)
        return True
    _files.write(path, text)
    return False


def echo(words: object, err: bool = False) -> None:
    """Print a line, or several, in which names and paths of the user stand."""
    click.echo(printable(str(words)), err=err)


def this_command() -> str:
    """The command as the user wrote it."""
    return shlex.join(["tfgc", *sys.argv[1:]])
