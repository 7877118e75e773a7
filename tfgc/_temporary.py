"""Temporary files and folders. What a killed process left is removed when the next one makes its own.

The process that made one holds a lock on it, which the system releases however that process ends.
"""

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator

_FOLDERS = "tfgc-run-"


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """Make a folder, which is removed at the end; its path.

    >>> with folder() as path:
    ...     os.listdir(path)
    []
    >>> os.path.exists(path)
    False
    """
    remove_abandoned(os.path.join(tempfile.gettempdir(), _FOLDERS))
    path, lock = _made()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _made() -> tuple[str, int]:
    while True:
        path = tempfile.mkdtemp(prefix=_FOLDERS)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY)
            if hold(lock, path):
                return path, lock
            os.close(lock)


def hold(descriptor: int, path: str) -> bool:
    """Lock a new file or folder until its descriptor is closed; whether nobody took it for abandoned before."""
    with contextlib.suppress(OSError):  # a file system without locks, where nobody takes it for abandoned
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return os.path.exists(path)


def remove_abandoned(start: str) -> None:
    """Remove files and folders of this user whose paths begin so, and which no process holds."""
    for path in glob.glob(f"{glob.escape(start)}*"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
            finally:
                os.close(lock)
