"""What the shell commands share: options, the model that a name stands for, files to write."""

import contextlib
import dataclasses
import json
import os
import shlex
import sys
import warnings

import click

from tfgc import _files
from tfgc._cli import files
from tfgc._errors import OptionError, check_int

Command = files.Command
read, written = files.Read, files.Written
INPUT, OUTPUT, PICTURE = files.Input(), files.Output(), files.Output(".png")
_NAME = click.argument("name", type=files.Network(), shell_complete=lambda context, option, text: networks(text))
_MODEL = (
    _NAME,
    click.option("--batch-size", type=int, required=True, help="Samples per batch."),
    click.option("--image-size", type=int, help="Image height and width, for networks that accept it."),
    click.option(
        "--input", "inputs", multiple=True, metavar="NAME=128,64",
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
        "--option", "options", multiple=True, metavar="KEY=VALUE",
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


def networks(text):
    """Names of networks that begin with `text`, for shell completion."""
    from tfgc.zoo import catalogue

    return [network.name for network in catalogue() if network.name.startswith(text)]


def model_options(command):
    """Let a command take a network, its batch size and its input sizes."""
    return _with(_MODEL, command)


def name_argument(command):
    """Let a command take a network."""
    return _NAME(command)


def cost_options(command):
    """Let a command take what costs are counted in."""
    return _with(_COSTS, command)


def plan_options(command):
    """Let a command take how to plan."""
    return _with(_PLAN, command)


def json_option(command):
    """Let a command take `--json`, alone or with a file."""
    return _with(_JSON, command)


def _json_path(path):
    """Check the file that `--json` names, which else would swallow the word behind it."""
    if path in (None, "-"):
        return path
    if not path.endswith(".json"):
        raise click.BadParameter(f"{path!r} does not end in .json; to print, let --json be the last option")
    return files.Written(path)


def emit_json(told, path):
    """Write `told` where `--json` says; whether that is in place of what the command prints else."""
    if path is None:
        return False
    from tfgc._records import measurement

    text = measurement.to_json(told) if isinstance(told, measurement.Results) else json.dumps(told, indent=1) + "\n"
    if path == "-":
        click.echo(text, nl=False)
        return True
    _files.write(path, text)
    return False


def this_command():
    """The command as the user wrote it."""
    return shlex.join(["tfgc", *sys.argv[1:]])


def _with(options, command):
    for option in reversed(options):
        command = option(command)
    return command


def shapes(inputs):
    """Read `NAME=128,64`, any number of them: a mapping from names to shapes.

    >>> shapes(["tokens=128", "image=32,32,3"])
    {'tokens': (128,), 'image': (32, 32, 3)}
    """
    found = {}
    for text in inputs:
        name, equals, sizes = text.rpartition("=")
        words = [word.strip() for word in sizes.split(",")]
        if not equals or not name or not all(word.isdigit() for word in words):
            raise OptionError(f"--input {text!r}: write the input's name and its size without the batch: tokens=128")
        found[name] = tuple(check_int(f"--input {name}", int(word)) for word in words)
    return found


def settings(options):
    """Read `key=value`, any number of them: numbers, true and false as such, all else as a list of names.

    >>> settings(["segments=8", "nested=false", "keep=conv1,conv2"])
    {'segments': 8, 'nested': False, 'keep': ['conv1', 'conv2']}
    """
    found = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise OptionError(f"--option {text!r}: write it as key=value, such as segments=8")
        found[key] = _value(value)
    return found


def _value(text):
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return [word.strip() for word in text.split(",")]


def open_model(name, image_size, inputs):
    """Build the model that `name` names; return it with its input shapes."""
    sizes = shapes(inputs)
    import_quietly()
    from tfgc import _user_modules, zoo
    from tfgc._tracing import keras_graph

    _user_modules.install([os.getcwd()])
    model = zoo.build(name, image_size)
    for tensor in keras_graph.functional_of(model).inputs:
        if None in tensor.shape[1:] and tensor.name not in sizes:
            example = ",".join(str(128 if size is None else size) for size in tensor.shape[1:])
            raise OptionError(
                f"input {tensor.name!r} of {name!r} has the shape {tuple(tensor.shape)}, of which more than the batch "
                f"is open: name its size without the batch, as in --input {tensor.name}={example}"
            )
    return model, sizes or None


def import_quietly():
    """Import TensorFlow and look for devices; what it greets with comes before any of its log levels is read."""
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


@dataclasses.dataclass
class Progress:
    """A bar on standard error, so that tables can be piped."""

    bar: object
    task: object

    def start(self, what):
        """Say what runs now."""
        self.bar.update(self.task, description=what)

    def done(self):
        """One more is done."""
        self.bar.advance(self.task)

    def skip(self):
        """One less is to be done, and it tells nothing of the time that is left."""
        self.bar.update(self.task, total=self.bar.tasks[self.task].total - 1)


@contextlib.contextmanager
def progress(what, total, unit):
    """Show a bar of `total` things named `unit`, with the time passed and left."""
    import rich.console
    import rich.progress

    columns = (
        "{task.description}", rich.progress.BarColumn(), "{task.completed}/{task.total} " + unit,
        rich.progress.TimeElapsedColumn(), "left:", rich.progress.TimeRemainingColumn(),
    )  # fmt: skip
    # Cases take minutes: all of them are looked at to tell the time that is left, not the last half minute.
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, speed_estimate_period=10**6) as bar:
        yield Progress(bar, bar.add_task(what, total=total))


@contextlib.contextmanager
def warnings_in_a_line():
    """Tell of tfgc's warnings as the command tells of its errors."""
    from tfgc._errors import NotReplayableWarning, OpenSizesWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", NotReplayableWarning)
        warnings.simplefilter("always", OpenSizesWarning)
        warnings.showwarning = lambda message, *_, **__: click.echo(f"tfgc: {message}", err=True)
        yield


def read_plan(path, budget, strategy, options):
    """The plan in a file, None if none is named; options to make one are then a mistake."""
    from tfgc._core import plan

    if path is None:
        return None
    for flag, given in (("--budget", budget), ("--strategy", strategy), ("--option", options)):
        if given:
            raise OptionError(f"give --plan, or {flag} to make one, not both")
    return plan.read(path)


def make_plan(model, batch_size, budget, strategy, options, **common):
    """Plan as the options say."""
    from tfgc import strategies
    from tfgc._planning import planner

    chosen = settings(options)
    if strategy is not None:
        strategy, more = strategies.named(strategy)
        chosen = {**more, **chosen}
    return planner.plan(model, batch_size, strategy=strategy, budget=budget, **common, **chosen)
