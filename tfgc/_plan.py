"""A plan: which nodes run together, and which of them run again. Plain data.

Invariant, held by `Plan.check`: the segments cover every node of the model once,
in an order that respects the edges.
"""

import dataclasses
import hashlib
import itertools
import json
from typing import Optional

from tfgc import _units
from tfgc._errors import OptionError, PlanMismatchError, TfgcError

MODES = ("keep", "recompute")
_FORMAT = "tfgc-plan"
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Segment:
    """Nodes that run, and run again, as one.

    Attributes:
        nodes: Their names, in the order in which they run.
        mode: `keep` (TensorFlow stores what backward needs) or `recompute`.
        chunks: Slices of the batch in which it runs.
        offload: Whether its checkpoint is stored in host memory.
        inner: The plan by which it is split again on replay, or None.
        stored_bytes: Bytes of the cut before it; None where sizes are unknown.
        made_bytes: Bytes that its nodes put out; None likewise.
    """

    nodes: tuple
    mode: str = "recompute"
    chunks: int = 1
    offload: bool = False
    inner: Optional["Plan"] = None
    stored_bytes: int | None = None
    made_bytes: int | None = None

    def __post_init__(self):
        if not self.nodes:
            raise OptionError("a segment needs at least one node")
        if self.mode not in MODES:
            raise OptionError(f"a segment's mode is {' or '.join(MODES)}, not {self.mode!r}")
        for name, plain in (("chunks", 1), ("offload", False), ("inner", None)):
            if getattr(self, name) != plain:
                raise OptionError(f"{name}={getattr(self, name)!r} is not built yet; leave it at {plain!r}")

    def __str__(self):
        ends = self.nodes[0] if len(self.nodes) == 1 else f"{self.nodes[0]} ... {self.nodes[-1]}"
        return f"{ends} ({len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''})"


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a model is run for training.

    Make one with `tfgc.plan`, or by hand for a hand-built graph with
    `Plan.from_cuts`.

    Attributes:
        segments: Tuple of `Segment`.
        strategy: The name of the method that chose it.
        options: What the method was given.
        model: A line for each node of the model it was made for.
        batch_size: The batch that its bytes are for; None: for one sample.
    """

    segments: tuple
    strategy: str
    model: tuple
    options: dict = dataclasses.field(default_factory=dict)
    batch_size: int | None = None

    @classmethod
    def from_cuts(cls, graph, cuts, *, strategy, options=None):
        """Cut `graph` before the given positions; all but the last segment recompute.

        The last one is kept: its backward pass comes right after its forward
        pass, so a replay would free nothing.
        """
        outside = [cut for cut in cuts if not 0 < cut < len(graph)]
        if outside:
            raise OptionError(f"cut at position {outside[0]}: the graph can be cut at 1 to {len(graph) - 1}")
        bounds = [0, *sorted(set(cuts)), len(graph)]
        segments = []
        for start, end in itertools.pairwise(bounds):
            segments.append(
                Segment(
                    nodes=tuple(node.name for node in graph.nodes[start:end]),
                    mode="keep" if end == len(graph) else "recompute",
                    stored_bytes=graph.cut_bytes[start] if graph.sizes_known else None,
                    made_bytes=sum(graph.node_bytes[start:end]) if graph.sizes_known else None,
                )
            )
        return cls(tuple(segments), strategy, describe(graph), options or {}, graph.batch_size)

    @property
    def fingerprint(self):
        """Sixteen hex digits that tell the model apart from others."""
        return hashlib.sha256("\n".join(self.model).encode()).hexdigest()[:16]

    def check(self, graph):
        """Raise `PlanMismatchError` unless this is a plan for `graph`."""
        here = describe(graph)
        for mine, theirs in zip(sorted(self.model), sorted(here)):
            if mine != theirs:
                raise PlanMismatchError(
                    f"this plan (strategy {self.strategy!r}) was made for another model: where the plan "
                    f"has {mine}, this model has {theirs}. Make a plan for this model with tfgc.plan(model)."
                )
        if len(self.model) != len(here):
            raise PlanMismatchError(
                f"this plan (strategy {self.strategy!r}) was made for a model of {len(self.model)} nodes, "
                f"this one has {len(here)}. Make a plan for this model with tfgc.plan(model)."
            )
        done = set(graph.inputs)
        for segment in self.segments:
            for name in segment.nodes:
                if name not in graph.position or name in done:
                    why = "is in it twice" if name in done else "is not in the model"
                    raise PlanMismatchError(f"not a plan for this model: node {name!r} {why}")
                for ref in graph.nodes[graph.position[name]].inputs:
                    if ref.node not in done:
                        raise PlanMismatchError(f"not a plan: {name!r} would run before {ref.node!r}, which it reads")
                done.add(name)
        missing = [node.name for node in graph.nodes if node.name not in done]
        if missing:
            raise PlanMismatchError(f"not a plan for this model: it leaves out {missing[0]!r}")

    def explain(self):
        """Say segment by segment what is stored, what is run again, and why."""
        per = "for one sample" if self.batch_size is None else f"for a batch of {self.batch_size}"
        recomputed = [s for s in self.segments if s.mode == "recompute"]
        settings = "".join(f", {k}={v!r}" for k, v in self.options.items())
        lines = [
            f"Plan by {self.strategy!r}{settings}: {len(self.segments)} segments, {len(recomputed)} of them "
            f"recomputed. Bytes are {per}.",
            f"All nodes put out {_total(s.made_bytes for s in self.segments)}; the cuts between segments store "
            f"{_total(s.stored_bytes for s in self.segments[1:])}, and while one segment is differentiated its own "
            "inside comes on top.",
        ]
        for i, segment in enumerate(self.segments):
            lines.append(f"{i:3d}  {segment.mode:9s} {segment}")
            lines.append(
                f"     stores {_total([segment.stored_bytes])} before it; "
                f"its nodes put out {_total([segment.made_bytes])}{self._reason(i)}"
            )
        return "\n".join(lines)

    def _reason(self, i):
        segment = self.segments[i]
        if segment.mode == "recompute":
            if segment.made_bytes is not None and segment.stored_bytes >= segment.made_bytes:
                return ", no more than that: running it again saves only what its layers keep inside"
            return ", freed until its backward pass"
        if i == len(self.segments) - 1:
            return ", kept: its backward pass comes at once"
        return ", kept"

    def to_json(self):
        """The plan as a JSON text, for a file of its own beside the model's."""
        data = {"format": _FORMAT, "version": _VERSION, "fingerprint": self.fingerprint, **dataclasses.asdict(self)}
        return json.dumps(data, indent=1)

    @classmethod
    def from_json(cls, text):
        """Read what `to_json` wrote.

        Raises:
            TfgcError: If the text is no plan, is damaged, or is of a newer version.
        """
        try:
            data = json.loads(text)
            if data.pop("format") != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT!r}")
            version = data.pop("version")
            if version > _VERSION:
                raise TfgcError(
                    f"the plan is of version {version}, this tfgc reads up to {_VERSION}: upgrade tfgc or plan again"
                )
            fingerprint = data.pop("fingerprint")
            data["segments"] = tuple(Segment(**{**s, "nodes": tuple(s["nodes"])}) for s in data["segments"])
            data["model"] = tuple(data["model"])
            plan = cls(**data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TfgcError(f"not a plan file, or a damaged one: {error}; make it again with tfgc.plan") from error
        if plan.fingerprint != fingerprint:
            raise TfgcError("a damaged plan file: its nodes do not fit its fingerprint; make it again with tfgc.plan")
        return plan


def describe(graph):
    """A line for each node, the same after the model is cloned or loaded again."""
    return tuple(node.describe() for node in graph.nodes)


def _total(counts):
    counts = list(counts)
    return "an unknown number of bytes" if None in counts else _units.format_bytes(sum(counts))
