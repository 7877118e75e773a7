"""A plan: which nodes run together, and which of them run again. Plain data.

Invariant, held by `Plan.check`: the segments cover every node of the model once, in an order that respects the edges.
"""

import dataclasses
import hashlib
import io
import itertools
import os
import pathlib
import reprlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self

from tfgc import _files
from tfgc._core import explanation, plan_data, timelines
from tfgc._core.graph import Graph
from tfgc._core.segments import Piece, Segmentation, check_coverage, segments_of
from tfgc._core.shown import Shown
from tfgc._errors import OptionError, PlanMismatchError, TfgcError


@dataclasses.dataclass(frozen=True, repr=False)
class Plan(Shown, Segmentation):
    """How a model is run for training. It prints as a table of its segments.

    Make one with `tfgc.plan`, or for a graph made by hand with `Plan.from_cuts`.

    Attributes:
        segments: Tuple of `Segment`.
        strategy: The name of the method that chose it.
        options: The options of that method.
        model: A line for each node of the model that it was made for.
        batch_size: The batch size that its bytes are for; None: for one sample.
        outlook: Its `Outlook`; None where sizes are unknown.
        operations: Whether its segments are operations of a training step, as of what `fit` and `tfgc.function` run by,
            and not nodes of a graph of layers.
        link: Bytes that are copied to the host, or back, while one unit of work is done; None: not known, so that
            predictions take no time for copies.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
        >>> plan = tfgc.plan(model)
        >>> tfgc.Plan.from_json(plan.to_json()) == plan
        True
    """

    @classmethod
    def from_cuts(
        cls, graph: Graph, cuts: Collection[int], *, strategy: str, options: dict[str, Any] | None = None
    ) -> Self:
        """Cut `graph` before the given positions; all segments but the last are recomputed.

        The last one is kept: its backward pass comes right after its forward pass, so a replay would free nothing.
        """
        outside = [cut for cut in cuts if not 0 < cut < len(graph)]
        if outside:
            where = f"the graph can be cut at 1 to {len(graph) - 1}" if len(graph) > 1 else "one node cannot be cut"
            raise OptionError(f"cut at position {outside[0]}: {where}")
        bounds = [0, *sorted(set(cuts)), len(graph)]
        pieces: list[Piece] = [(i, j, "recompute") for i, j in itertools.pairwise(bounds[:-1])]
        pieces.append((bounds[-2], bounds[-1], "keep"))
        return cls.from_pieces(graph, pieces, strategy=strategy, options=options)

    @classmethod
    def from_pieces(
        cls, graph: Graph, pieces: Iterable[Piece], *, strategy: str, options: dict[str, Any] | None = None
    ) -> Self:
        """Make a plan of pieces of the graph's order. A piece with a node that cannot be run twice is kept.

        Args:
            graph: The graph.
            pieces: Tuples (start, end, how) of positions in `graph.nodes`, the end not included. How is "keep",
                "recompute", or pieces of its replay.
            strategy: A name for what made the plan.
            options: What it was asked for, if that is to be kept.

        Raises:
            OptionError: If a piece is empty, or cannot run as it says.

        Example:
            >>> import keras, tfgc
            >>> def halves(graph, n=2):
            ...     pieces = [(0, n, "recompute"), (n, len(graph), "keep")]
            ...     return tfgc.Plan.from_pieces(graph, pieces, strategy="halves")
            >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
            >>> [len(segment.nodes) for segment in tfgc.plan(model, strategy=halves).segments]
            [2, 6]
        """
        segments = segments_of(graph, pieces, lambda inner: cls(inner, "inner", ()))
        return cls(segments, strategy, graph.once(describe), options or {}, graph.batch_size)

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that identify the model."""
        return hashlib.sha256("\n".join(self.model).encode()).hexdigest()[:16]

    def check(self, graph: Graph) -> None:
        """Raise `PlanMismatchError` unless this is a plan for `graph`."""
        if self.operations:
            raise PlanMismatchError(
                f"this plan (strategy {self.strategy!r}) is of the operations of a training step, not of this graph: "
                "train by it after tfgc.enable(model, plan)"
            )
        self.check_model(graph.once(describe))
        check_coverage(graph, self.segments, [node.name for node in graph.nodes], set(graph.inputs), "model")

    def check_model(self, here: Sequence[str]) -> None:
        """Raise `PlanMismatchError` unless the model that this was made for is one of these lines."""
        unit = "operations" if self.operations else "nodes"
        counts = len(self.model), len(here)
        differs = [] if counts[0] == counts[1] else [f"it has {counts[0]} {unit}, this model has {counts[1]}"]
        mine, theirs = next((pair for pair in zip(sorted(self.model), sorted(here)) if pair[0] != pair[1]), ("", ""))
        if mine != theirs:
            differs.append(f"where the plan has {mine}, this model has {theirs}")
        if differs:
            raise PlanMismatchError(
                f"this plan (strategy {self.strategy!r}) was made for another model: {'; '.join(differs)}. Make a plan "
                "for this model with tfgc.plan(model)."
            )

    def explain(self) -> str:
        """Explain for each segment what is stored, what is run again, why, and what that costs, as text to print."""
        return explanation.explain(self)

    def plot(self) -> Any:
        """Draw the activations that are stored in the course of a step, beside those of the plain step, by matplotlib.

        Returns:
            The matplotlib axes: `plan.plot().figure.savefig("plan.png")`.

        Raises:
            TfgcError: If sizes are unknown, or matplotlib is not installed.
        """
        return timelines.of_plan(self)

    _rest = ": plan.explain() has all"

    def _shown(self) -> tuple[str, Sequence[str], list[list[str]]]:
        return explanation.summary(self)

    def to_json(self) -> str:
        """The plan as JSON: what `save` writes."""
        return plan_data.written(self, self.fingerprint)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read what `to_json` wrote.

        Raises:
            TfgcError: If the text is not a plan, is damaged, or is of a newer version.
        """
        if names_file(text):
            raise TfgcError(f"{reprlib.repr(text)} is not the JSON text of a plan: tfgc.Plan.load(path) reads a file")
        plan, fingerprint = plan_data.read(cls, text)
        if plan.fingerprint != fingerprint:
            raise TfgcError("a damaged plan file: its nodes do not match its fingerprint; make it again with tfgc.plan")
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan into a file, to be kept beside the model's; raise `TfgcError` if that cannot be written."""
        _files.write(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read what `save` wrote.

        Raises:
            TfgcError: If the file cannot be read, or as `from_json` says. The message names it.
        """
        try:
            return cls.from_json(pathlib.Path(path).read_text())
        except OSError as error:
            raise TfgcError(f"cannot read the plan {str(path)!r}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise TfgcError(f"{str(path)!r} is not a plan file: it is not text") from error
        except TfgcError as error:
            raise TfgcError(f"{str(path)!r}: {error}") from error


def names_file(given: Any) -> bool:
    """Whether what was given in place of a plan, or of its text, is a file or the path of one."""
    is_path = isinstance(given, str) and (given.endswith(".json") or os.path.isfile(given))
    return is_path or isinstance(given, os.PathLike | io.IOBase)


def describe(graph: Graph) -> tuple[str, ...]:
    """A line for each node, which stays the same when the model is cloned or loaded again."""
    return tuple(node.describe() for node in graph.nodes)
