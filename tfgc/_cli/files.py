"""The files of a shell command: which it reads and which it writes, and that writing destroys nothing.

The types of options and arguments say what their paths are for; `Command` checks all of them before any work.
"""

import os
from typing import IO, Any

import click
from click.shell_completion import CompletionItem

from tfgc import _files
from tfgc._terminal import printable


class Network(click.ParamType):
    """A network; a saved model, or the module of a builder, is a file to read."""

    name = "network"

    def reads(self, value: str) -> str | None:
        """The file that is read for it; None if there is none in the current folder."""
        if value.endswith(".keras"):
            return value
        inside = value.partition(":")[0].replace(".", os.sep)
        files = [f"{inside}.py", os.path.join(inside, "__init__.py")] if ":" in value else []
        return next(filter(os.path.isfile, files), None)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from tfgc.zoo import catalogue

        return [CompletionItem(network.name) for network in catalogue() if network.name.startswith(incomplete)]


class Input(click.Path):
    """The path of a file to read."""

    def reads(self, value: str) -> str:
        """The file itself."""
        return value


class Output(click.Path):
    """The path of a file to write, with the required `ending`; it may be `-` for standard output where that is said."""

    def __init__(self, ending: str = "", *, allow_dash: bool = False) -> None:
        super().__init__(allow_dash=allow_dash)
        self._ending = ending

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = str(super().convert(value, param, ctx))
        if not (path == "-" and self.allow_dash) and not path.lower().endswith(self._ending) and _files.is_file(path):
            printed = "; to print, let it be the last option" if self.allow_dash else ""
            self.fail(f"{path!r} does not end in {self._ending}{printed}", param, ctx)
        return path


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
            flag = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            value = ctx.params.get(param.name or "")
            for one in filter(None, value if isinstance(value, tuple) else (value,)):
                if isinstance(param.type, Output) and one != "-":
                    writes.append((flag, one))
                elif isinstance(param.type, (Network, Input)):
                    reads.append((flag, one, param.type.reads(one)))
        for i, (flag, path) in enumerate(writes):
            for other, value, read in reads:
                if read is not None and _files.same(path, read):
                    raise Conflict(f"{flag} {path!r}: {other} {value!r} reads that file; name another one")
            for other, written in writes[:i]:
                if _files.same(path, written):
                    raise Conflict(f"{flag} {path!r}: {other} {written!r} writes that file; name another one")
        for _, path in writes:
            _files.check_writable(path)
        return super().invoke(ctx)
