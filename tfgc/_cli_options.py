"""What the shell commands share: options, the model that a name stands for, files to write."""

import contextlib
import os
import sys
import warnings

import click

from tfgc._errors import OptionError, TfgcError, whole

_MODEL = (
    click.argument("name"),
    click.option("--batch-size", type=int, required=True, help="Samples in a batch."),
    click.option("--image-size", type=int, help="Height and width of the images, for networks that take it."),
    click.option(
        "--input", "inputs", multiple=True, metavar="NAME=128,64",
        help="Size, without the batch, of an input that the model leaves open; repeatable.",
    ),
)  # fmt: skip
_COSTS = (
    click.option("--measure", is_flag=True, help="Time each node on this device, and count seconds, not flops."),
    click.option("--optimizer", help="Whose slots count in the whole step.  [default: adam]"),
)
_PLAN = (
    click.option("--budget", help="Bytes of the whole step: 2GB, 60% of the plain step's, or auto (what is free)."),
    click.option("--strategy", help="How to plan.  [default: budget with a budget, else optimal]"),
    click.option(
        "--option", "options", multiple=True, metavar="KEY=VALUE",
        help="Option of the strategy: a number, or names separated by commas; repeatable.",
    ),
)  # fmt: skip


def model_options(command):
    """Let a command take a network, its batch size and its input sizes."""
    return _with(_MODEL, command)


def cost_options(command):
    """Let a command take what costs are counted in."""
    return _with(_COSTS, command)


def plan_options(command):
    """Let a command take how to plan."""
    return _with(_PLAN, command)


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
        found[name] = tuple(whole(f"--input {name}", int(word)) for word in words)
    return found


def settings(options):
    """Read `key=value`, any number of them: numbers as such, all else as a list of names.

    >>> settings(["segments=8", "keep=conv1,conv2"])
    {'segments': 8, 'keep': ['conv1', 'conv2']}
    """
    found = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise OptionError(f"--option {text!r}: write it as key=value, such as segments=8")
        found[key] = _value(value)
    return found


def _value(text):
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return [word.strip() for word in text.split(",")]


def open_model(name, image_size, inputs):
    """Build the model that `name` names; return it with its input shapes."""
    sizes = shapes(inputs)
    _import_quietly()
    from tfgc import _trace, zoo

    # As `python -m` does it: module:function may lie in the folder where the user is.
    sys.path[:0] = [""] if "" not in sys.path else []

    model = zoo.build(name, image_size)
    for tensor in _trace.functional_of(model).inputs:
        if None in tensor.shape[1:] and tensor.name not in sizes:
            example = ",".join(str(128 if size is None else size) for size in tensor.shape[1:])
            raise OptionError(
                f"input {tensor.name!r} of {name!r} has the shape {tuple(tensor.shape)}, of which more than the batch "
                f"is open: name its size without the batch, as in --input {tensor.name}={example}"
            )
    return model, sizes or None


def _import_quietly():
    """Import TensorFlow; what it greets with comes before any of its log levels is read."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        import tensorflow  # noqa: F401 - for its effect
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def check_writable(path):
    """Fail before an hour of work rather than after it."""
    new = not os.path.exists(path)
    try:
        with open(path, "a"):
            pass
    except OSError as error:
        raise TfgcError(f"cannot write {path!r}: {error.strerror}") from error
    if new:
        os.remove(path)


def progress_console():
    """Progress goes to standard error, so that tables can be piped."""
    import rich.console

    return rich.console.Console(stderr=True)


@contextlib.contextmanager
def warnings_in_a_line():
    """Tell of tfgc's warnings as the command tells of its errors."""
    from tfgc._errors import NotReplayableWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", NotReplayableWarning)
        warnings.showwarning = lambda message, *_, **__: click.echo(f"tfgc: {message}", err=True)
        yield
