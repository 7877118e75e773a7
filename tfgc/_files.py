"""Write files whole or not at all, and find out which paths lead to the same file.

The new contents go into a temporary file beside the old one, which they replace once they are on the disk: a full
disk, an error or Ctrl-C leaves the old file and nothing else. A symbolic link stays and what it leads to is replaced;
permissions stay as well. Pipes and devices (/dev/null, /dev/stdout) are written to directly.
"""

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO

from tfgc._errors import TfgcError

Path = str | os.PathLike[str]


def write(path: Path, contents: str | bytes) -> None:
    """Write text or bytes as the whole contents of `path`, or raise `TfgcError` and leave the old file.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/plan.json", "{}")
    ...     [(file.name, file.read_text()) for file in pathlib.Path(folder).iterdir()]
    [('plan.json', '{}')]
    """
    contents = contents.encode() if isinstance(contents, str) else contents
    with _reporting(path):
        if not is_file(path):
            sys.stdout.flush()
            with _opened(path) as file:
                file.write(contents)
            return
        _allowed(path)
        target = os.path.realpath(path)
        with _beside(target) as (file, name):
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
            os.replace(name, target)


def check_writable(path: Path) -> None:
    """Raise `TfgcError`, before an hour of work, if `path` cannot be written; leave nothing behind."""
    with _reporting(path):
        _allowed(path)
        if is_file(path):
            with _beside(os.path.realpath(path)):
                pass


def same(first: Path, second: Path) -> bool:
    """Whether two paths lead to the same file, existing or not; pipes and devices do not count.

    >>> same("plan.json", "./plan.json"), same("plan.json", "other.json"), same("/dev/null", "/dev/null")
    (True, False, False)
    """
    with contextlib.suppress(OSError):
        return os.path.samefile(first, second) and os.path.isfile(first)
    return os.path.realpath(first) == os.path.realpath(second)


@contextlib.contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `TfgcError` that names the file."""
    try:
        yield
    except OSError as error:
        raise TfgcError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


def _allowed(path: Path) -> None:
    """Raise what opening the file would: replacing it by another one needs fewer permissions."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def is_file(path: Path) -> bool:
    """Whether `path` is, or would become, a regular file: no pipe, device or standard output."""
    if _standard(path) is not None:
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def _standard(path: Path) -> int | None:
    """The descriptor of standard output or error, if the path leads there, as `/dev/stdout` does; else None."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(number)):
                return number
    return None


def _opened(path: Path) -> BinaryIO:
    """A pipe, device or descriptor, open to write. Descriptors are duplicated: opened anew, they start at 0."""
    number = _standard(path)
    return open(path, "wb") if number is None else os.fdopen(os.dup(number), "wb")


@contextlib.contextmanager
def _beside(target: str) -> Iterator[tuple[BinaryIO, str]]:
    """A new file beside `target`, open to write, and its name; removed at the end unless it replaced `target`."""
    name = os.path.join(os.path.dirname(target), f".tfgc-{secrets.token_hex(8)}")
    try:
        with open(name, "xb") as file:
            yield file, name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(name)
