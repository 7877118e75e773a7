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
from tfgc._cli import choices, files, values
from tfgc._terminal import printable

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

Command = files.Command
written = files.Written
COUNT, BUDGET = values.Count(), values.Budget()
INPUT, OUTPUT, PICTURE = files.Input(), files.Output(), files.Output(".png")


def networks(text: str) -> list[str]:
    """Names of networks that begin with `text`, for shell completion."""
    from tfgc.zoo import catalogue

    return [network.name for network in catalogue() if network.name.startswith(text)]


def _chosen(argument: str, kind: type, options: Sequence[Decorator]) -> Decorator:
    """A decorator that adds options to a command, which gets their values as one `kind` in an argument."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_choice(**given: Any) -> Any:
            choice = kind(**{field: given.pop(field) for field in inspect.get_annotations(kind) if field in given})
            return command(**{argument: choice}, **given)

        return functools.reduce(lambda made, option: option(made), reversed(options), with_choice)

    return decorate


name_argument = click.argument(
    "name", type=files.Network(), shell_complete=lambda context, option, text: networks(text)
)
image_size = click.option("--image-size", type=COUNT, help="Image height and width, for networks that accept it.")
input_shapes = click.option(
    "--input", "inputs", multiple=True, type=values.InputShape(), metavar="NAME=128,64",
    help="Shape, without the batch, of an input whose size the model leaves open; repeatable.",
)  # fmt: skip
example = click.option(
    "--example", metavar="MODULE:FUNCTION",
    help="Function without arguments that returns a batch, x or (x, y), for a subclassed model; its samples are "
    "repeated or left out to make a batch.",
)  # fmt: skip
strategy_options = click.option(
    "--option", "strategy_options", multiple=True, type=values.Setting(), metavar="KEY=VALUE",
    help="Strategy option: a number, true, false, bytes, or comma-separated names; repeatable.",
)  # fmt: skip
optimizer = click.option(
    "--optimizer", type=values.Optimizer(), help="Optimizer whose state is counted.  [default: adam]"
)
mode = click.option(
    "--mode", type=click.Choice(["graph", "xla"]), default="graph", show_default=True,
    help="How the step runs: in a TensorFlow graph, or compiled by XLA, as in fit on a GPU.",
)  # fmt: skip
# A command gets these as `network: NetworkChoice`, `planning: PlanChoice` and `costs: Costs`.
_network = (name_argument, image_size, input_shapes, example)
_batch_size = click.option("--batch-size", type=COUNT, required=True, help="Samples per batch.")
network_without_batch = _chosen("network", choices.NetworkChoice, _network)
network_options = _chosen("network", choices.NetworkChoice, (_network[0], _batch_size, *_network[1:]))
_plan = (
    click.option(
        "--budget", type=BUDGET, help="Memory for the whole step: 2GB, 60% (of the plain step), or auto (free memory)."
    ),
    click.option("--strategy", help="Planning strategy.  [default: budget if --budget is given, else optimal]"),
    strategy_options,
)
_plan_file = click.option("--plan", "plan_path", type=INPUT, help="Plan file to use instead of planning options.")
plan_options = _chosen("planning", choices.PlanChoice, _plan)
plan_or_options = _chosen("planning", choices.PlanChoice, (*_plan, _plan_file))
cost_options = _chosen("costs", choices.Costs, (optimizer, mode))
json_option = click.option(
    "--json", "json_path", is_flag=False, flag_value="-", metavar="[FILE]", is_eager=True,
    callback=lambda context, option, path: _json_path(path),
    help="Print JSON instead of tables, or write it to a .json FILE and print the tables.",
)  # fmt: skip


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
