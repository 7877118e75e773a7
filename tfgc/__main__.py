"""Entry point of the command line; the only place that makes exit codes.

0: success. 1: a `TfgcError` or a full disk, reported in one line. 2: wrong usage. 130: interrupted.
"""

import errno
import os
import sys

from tfgc import _user_modules

# Of writing to a full or broken output.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE, errno.EIO)


class _Interrupt(KeyboardInterrupt):
    """What an interrupt raises: a plain one that leaves `exec` of a string ends Python by the signal, caught or not."""


def main() -> None:
    """Run the `tfgc` command."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = _failed("interrupted", 130)
    sys.exit(code)


def _run() -> int | None:
    import signal

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:  # It may raise where Python prints what is raised and goes on, as between two imports.
        signal.signal(signal.SIGINT, lambda *_: os._exit(_failed("interrupted", 130)))
    import click

    from tfgc._cli import group
    from tfgc._errors import TfgcError

    interrupts = []
    if usual:

        def interrupt(number: int, _: object) -> None:
            interrupts.append(number)  # Native code makes another error of what is raised in it.
            raise _Interrupt

        signal.signal(signal.SIGINT, interrupt)
    try:
        code = group.cli.main(prog_name="tfgc", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except Exception as error:
        if interrupts or isinstance(error, click.Abort):
            return _failed("interrupted", 130)
        if isinstance(error, TfgcError):
            return _failed(str(error), 1)
        if isinstance(error, click.ClickException):
            error.show()
            return error.exit_code
        if not isinstance(error, OSError) or error.errno not in _UNWRITABLE or sys.stdout is None:
            raise
        # Python would try once more to write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _failed(f"cannot write the output: {error.strerror}", 1)


def _failed(why: str, code: int) -> int:
    import contextlib

    from tfgc._terminal import printable

    with contextlib.suppress(OSError):
        print(f"tfgc: {printable(why)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    _user_modules.leave()
    main()
