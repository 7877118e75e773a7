"""Operations of one trace by their names in another, which may have the model in another scope."""

from collections import defaultdict
from collections.abc import Iterable

# A name that is not there as it is has to share its operation and the scope around that, such as the layer.
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
        for start in range(max(1, len(parts) - _LEAST + 1)):
            if found := self._ends.get(parts[start:]):
                whole = [each for each in found if each == name]
                return (whole or found)[0] if whole or len(found) == 1 else None
        return None
