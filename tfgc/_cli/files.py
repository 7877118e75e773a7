"""The files of a shell command: which it reads and which it writes, and that writing destroys nothing.

The types of options and arguments say what their paths are for; `Command` checks all of them before any work.
"""

import os
from typing import IO, Any

import click

from tfgc import _files
from tfgc._errors import OptionError
from tfgc._terminal import printable


class Read(str):
    """A value that names a file to read; `path` is that file."""

    path: str

    def __new__(cls, text: str, path: str | None = None) -> "Read":
        made = super().__new__(cls, text)
        made.path = path or text
        return made


class Written(str):
    """The path of a file to write."""


class Network(click.ParamType):
    """A network; a saved model, or the module of a builder, is a file to read."""

    name = "network"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value.endswith(".keras"):
            return Read(value)
        inside = value.partition(":")[0].replace(".", os.sep)
        files = [f"{inside}.py", os.path.join(inside, "__init__.py")] if ":" in value else []
        return next((Read(value, path) for path in files if os.path.isfile(path)), value)


class Input(click.Path):
    """The path of a file to read."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return Read(str(super().convert(value, param, ctx)))


class Output(click.Path):
    """The path of a file to write, with the required `ending`."""

    def __init__(self, ending: str | None = None) -> None:
        super().__init__()
        self._ending = ending

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = str(super().convert(value, param, ctx))
        if self._ending and not path.lower().endswith(self._ending) and _files.is_file(path):
            raise OptionError(
                f"{_flag(param)} {path!r}: the output is a {self._ending} file: give it a name that ends in "
                f"{self._ending}"
            )
        return Written(path)


class Conflict(click.ClickException):
    """A file to write is also read, or written twice."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"tfgc: {printable(self.message)}", err=True)


class Command(click.Command):
    """A command that checks first that all its files can be written, each once and none over an input."""

    def invoke(self, ctx: click.Context) -> Any:
        reads, writes = [], []
        for param in self.params:
            value = ctx.params.get(param.name or "")
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, (Read, Written)):
                    (reads if isinstance(one, Read) else writes).append((_flag(param), one))
        for i, (flag, path) in enumerate(writes):
            for other, read in reads:
                if _files.same(path, read.path):
                    raise Conflict(f"{flag} {path!r}: {other} {read!r} reads that file; name another one")
            for other, written in writes[:i]:
                if _files.same(path, written):
                    raise Conflict(f"{flag} {path!r}: {other} {written!r} writes that file; name another one")
        for _, path in writes:
            _files.check_writable(path)
        ctx.params = {name: _plain(value) for name, value in ctx.params.items()}
        return super().invoke(ctx)


def _plain(value: Any) -> Any:
    """The value of a parameter without the marks of its type."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return str(value) if isinstance(value, str) else value


def _flag(param: click.Parameter | None) -> str:
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name if param else "the file"
