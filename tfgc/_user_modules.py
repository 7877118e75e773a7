"""Import what the user named from the current folder, and nothing else from there.

A folder on `sys.path` offers its files to every import: a user's `statistics.py` or `keras.py` would then replace the
module that TensorFlow imports, and a `jax.py` would be found where Keras checks whether JAX is installed. So commands
and their child processes have no such folder on the path. A finder behind all others looks there for the module that
was named, and for what the modules of that folder import in turn.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# Code between an import and this finder, and pickles that name a module.
_BETWEEN = ("importlib", "_frozen_importlib", "_frozen_importlib_external", "pickle", "cloudpickle")


def leave() -> None:
    """Remove from the path what `python -m` put in front of it."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]


def for_child() -> tuple[str, list[str]]:
    """The path for a child process as `PYTHONPATH`, and the folders that Python itself put on the path of this one.

    These are the current folder and that of the script that runs, unless the user's `PYTHONPATH` names them.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [os.getcwd(), *([os.path.dirname(os.path.abspath(script))] if script else [])]
    asked = [os.path.abspath(word) for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
    kept = [p for p in sys.path if isinstance(p, str) and p and (p in asked or os.path.abspath(p) not in folders)]
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.pathsep.join(dict.fromkeys([*kept, home])), list(dict.fromkeys(folders))


def install(folders: Sequence[str], trusted: Sequence[str] = ()) -> None:
    """Let what the user names be found in `folders` from now on, by the modules named in `trusted` as well."""
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, Finder)] + [Finder(folders, trusted)]


def module(name: str) -> ModuleType:
    """Import a module that the user named: from the folders that are installed, else as Python does."""
    check(name)
    finder, first = _finder(), name.partition(".")[0]
    if finder is None or finder.search(first) is None or finder.has(getattr(sys.modules.get(first), "__file__", None)):
        return importlib.import_module(name)
    if first not in sys.modules and importlib.util.find_spec(first) is None:
        finder.named.add(first)
        try:
            return importlib.import_module(name)
        finally:
            finder.named.discard(first)
    rename = f"{first!r} in the current folder has the name of an installed module: rename it"
    if name == first:
        raise ImportError(rename)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{error}; {rename}") from error


def check(name: str) -> None:
    """Raise `ImportError` if there is no module of this name, or none that could have it inside; import nothing."""
    first, finder = name.partition(".")[0], _finder()
    if not all(name.split(".")):
        raise ImportError(f"{name!r} is not a module name")
    if first in sys.modules or (finder is not None and finder.search(first) is not None):
        return
    if importlib.util.find_spec(first) is None:
        raise ImportError(f"No module named {first!r}")


def _finder() -> "Finder | None":
    return next((one for one in sys.meta_path if isinstance(one, Finder)), None)


def function(name: str) -> object:
    """What `module:function` names; raises `ImportError` whatever goes wrong."""
    from tfgc._error_texts import one_line  # not above: the current folder may still be on the path

    path, _, inside = name.partition(":")
    try:
        return getattr(module(path), inside)
    except ImportError:
        raise
    except AttributeError as error:
        raise ImportError(str(error)) from error
    except (Exception, SystemExit) as error:  # the user's code
        raise ImportError(one_line(error)) from error


class Finder:
    """Finds modules in folders for those that come from there."""

    def __init__(self, folders: Sequence[str], trusted: Sequence[str]) -> None:
        self.named: set[str] = set()
        self._folders, self._trusted = list(folders), set(trusted)
        self._own: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """What the import system asks: the spec of a module, None if it is not to come from here."""
        if path is None and (name in self.named or self._asked_from_inside()):
            return self.search(name, own=True)
        return None

    def search(self, name: str, own: bool = False) -> ModuleSpec | None:
        """The spec of a module in one of the folders, None if there is none; `own` if it may also import from there."""
        spec = importlib.machinery.PathFinder.find_spec(name, self._folders)
        if spec is not None and own:  # the folders of a package, or the file of a module
            self._own.update(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))
        return spec

    def has(self, file: str | None) -> bool:
        """Whether a file is of a module that was found here."""
        return file is not None and any(file == own or file.startswith(own + os.sep) for own in self._own)

    def _asked_from_inside(self) -> bool:
        frame = sys._getframe(2)
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
            frame = frame.f_back
        known = {} if frame is None else frame.f_globals
        return known.get("__name__") in self._trusted or self.has(known.get("__file__"))
