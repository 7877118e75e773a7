"""Operations of one trace by their names in another, which may have the model in another scope."""

from collections import defaultdict
from collections.abc import Iterable

# A name that is not there as it is, nor in fewer scopes, has to share its operation and the scope around that, such as
# the layer.
_LEAST = 2


class Names:
    """Names of operations.

    >>> names = Names(["net/a/MatMul", "net/b/MatMul", "net/a/Relu"])
    >>> names.find("net/b/MatMul"), names.find("train/net/b/MatMul"), names.find("train/net/c/MatMul")
    ('net/b/MatMul', 'net/b/MatMul', None)
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._ends: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name in names:
            parts = tuple(name.split("/"))
            for start in range(len(parts)):
                self._ends[parts[start:]].append(name)

    def find(self, name: str) -> str | None:
        """The name that shares the most scopes with another one, from its end; None if that is not one alone."""
        parts = tuple(name.split("/"))
        for start in range(len(parts)):
            end = parts[start:]
            found = self._ends.get(end, [])
            if (whole := "/".join(end)) in found:  # calls of a model are traced outside of its scope
                return whole
            if found and (not start or len(end) >= _LEAST):
                return found[0] if len(found) == 1 else None
        return None
