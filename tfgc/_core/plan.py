"""A plan: which nodes run together, and which of them run again. Plain data.

Invariant, held by `Plan.check`: the segments cover every node of the model once,
in an order that respects the edges.
"""

import dataclasses
import hashlib
import itertools
import json
import pathlib
from typing import Optional

from tfgc._core import explanation
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
        inner: The plan by which it is split again on replay, or None. It covers these nodes,
            and its `model` is ().
        stored_bytes: What it adds to memory from its forward to its backward pass, on top of
            what earlier segments store; None where sizes are unknown.
        inside_bytes: What it would add if TensorFlow kept it whole; None likewise.
        input_bytes: What it would add if it were recomputed; None likewise.
        work: Seconds or flops to run it again; None likewise.
        obstacle: Why it cannot be run twice, or None.

    Example:
        >>> print(Segment(("conv", "normalization", "relu")))
        conv ... relu (3 nodes)
    """

    nodes: tuple
    mode: str = "recompute"
    chunks: int = 1
    offload: bool = False
    inner: Optional["Plan"] = None
    stored_bytes: int | None = None
    inside_bytes: int | None = None
    input_bytes: int | None = None
    work: float | None = None
    obstacle: str | None = None

    def __post_init__(self):
        if not self.nodes:
            raise OptionError("a segment needs at least one node")
        if self.mode not in MODES:
            raise OptionError(f"a segment's mode is {' or '.join(MODES)}, not {self.mode!r}")
        for name, plain in (("chunks", 1), ("offload", False)):
            if getattr(self, name) != plain:
                raise OptionError(f"{name}={getattr(self, name)!r} is not built yet; leave it at {plain!r}")
        if self.inner is None:
            return
        if not isinstance(self.inner, Plan):
            raise OptionError(f"inner={self.inner!r} is no Plan")
        if self.mode == "keep":
            raise OptionError("inner: a segment of mode 'keep' is not run again, so no plan can split that run")
        if self.inner.model:
            raise OptionError("inner: the outer plan alone tells of the model; give the inner one model=()")

    def __str__(self):
        ends = self.nodes[0] if len(self.nodes) == 1 else f"{self.nodes[0]} ... {self.nodes[-1]}"
        return f"{ends} ({len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''})"


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What a plan promises, by the simulator; bytes leave weights out.

    Attributes:
        peak_bytes: Most bytes at once in a step.
        node: What runs at that moment.
        phase: Its phase, as in `Prediction`.
        plain_bytes: The peak if nothing is recomputed.
        floor_bytes: Least peak of any plan at this granularity: what one node alone needs.
        floor_node: That node.
        overhead: Part of the plain step's work that comes on top.
        least_overhead: No plan of this peak at this granularity has less.
        unit: What work is counted in, `s` or `flop`.
        whole_step: Whether the bytes hold the gradients of weights, or activations alone.
    """

    peak_bytes: int
    node: str
    phase: str
    plain_bytes: int
    floor_bytes: int
    floor_node: str
    overhead: float
    least_overhead: float
    unit: str
    whole_step: bool = False

    @property
    def cut_off(self):
        """Part of the plain peak that is saved."""
        return 1 - self.peak_bytes / self.plain_bytes if self.plain_bytes else 0.0

    @property
    def gap(self):
        """By which part of the floor the peak is above it."""
        return self.peak_bytes / self.floor_bytes - 1 if self.floor_bytes else 0.0


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
        outlook: Its `Outlook`; None where sizes are unknown.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
        >>> plan = tfgc.plan(model)
        >>> tfgc.Plan.from_json(plan.to_json()) == plan
        True
    """

    segments: tuple
    strategy: str
    model: tuple
    options: dict = dataclasses.field(default_factory=dict)
    batch_size: int | None = None
    outlook: Outlook | None = None

    @property
    def is_nested(self):
        """Whether the replay of a segment is itself run by a plan."""
        return any(segment.inner is not None for segment in self.segments)

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
        pieces = [(i, j, "recompute") for i, j in itertools.pairwise(bounds[:-1])]
        pieces.append((bounds[-2], bounds[-1], "keep"))
        return cls.from_pieces(graph, pieces, strategy=strategy, options=options)

    @classmethod
    def from_pieces(cls, graph, pieces, *, strategy, options=None):
        """Make a plan of stretches of the graph's order: (start, end, mode), or (start, end, pieces of its replay).

        A stretch with a node that cannot be run twice is kept.
        """
        return cls(_segments(graph, pieces), strategy, describe(graph), options or {}, graph.batch_size)

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
        _check_cover(graph, self.segments, [node.name for node in graph.nodes], set(graph.inputs), "model")

    def explain(self):
        """Say segment by segment what is stored, what is run again, why, and what that costs."""
        return explanation.explain(self)

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
            plan = _revived(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TfgcError(f"not a plan file, or a damaged one: {error}; make it again with tfgc.plan") from error
        if plan.fingerprint != fingerprint:
            raise TfgcError("a damaged plan file: its nodes do not fit its fingerprint; make it again with tfgc.plan")
        return plan


def read(path):
    """The plan in a file; an error names the file.

    Raises:
        TfgcError: If there is no such file, or no plan in it that this tfgc reads.
    """
    try:
        return Plan.from_json(pathlib.Path(path).read_text())
    except OSError as error:
        raise TfgcError(f"cannot read the plan {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TfgcError(f"{str(path)!r} is not a plan file, it holds no text") from error
    except TfgcError as error:
        raise TfgcError(f"{str(path)!r}: {error}") from error


def describe(graph):
    """A line for each node, the same after the model is cloned or loaded again."""
    return tuple(node.describe() for node in graph.nodes)


def _segments(graph, pieces):
    segments = []
    for start, end, how in pieces:
        nodes = graph.nodes[start:end]
        obstacles = [f"{n.name!r}: {n.cost.obstacle}" for n in nodes if n.cost is not None and n.cost.obstacle]
        if obstacles:
            how = "keep"
        nested = not isinstance(how, str)
        segments.append(
            Segment(
                nodes=tuple(node.name for node in nodes),
                mode="recompute" if nested else how,
                inner=Plan(_segments(graph, how), "inner", ()) if nested else None,
                obstacle=obstacles[0] if obstacles else None,
            )
        )
    return tuple(segments)


def _check_cover(graph, segments, names, done, whole):
    """Raise unless `segments` run each of `names` once, and after what it reads; `done` ran before."""
    known, left = set(names), set(names)
    for segment in segments:
        before = set(done)
        for name in segment.nodes:
            if name not in left:
                why = "is in it twice" if name in known else f"is not in the {whole.partition(' ')[0]}"
                raise PlanMismatchError(f"not a plan for this {whole}: node {name!r} {why}")
            for ref in graph.nodes[graph.position[name]].inputs:
                if ref.node not in done:
                    raise PlanMismatchError(f"not a plan: {name!r} would run before {ref.node!r}, which it reads")
            left.remove(name)
            done.add(name)
        if segment.inner is not None:
            _check_cover(graph, segment.inner.segments, segment.nodes, before, f"segment of a plan, {segment}")
    missing = [name for name in names if name in left]
    if missing:
        raise PlanMismatchError(f"not a plan for this {whole}: it leaves out {missing[0]!r}")


def _revived(data):
    """The plan, with the plans inside of it, that `dataclasses.asdict` took apart."""
    segments = []
    for fields in data["segments"]:
        inner = None if fields.get("inner") is None else _revived(fields["inner"])
        segments.append(Segment(**{**fields, "nodes": tuple(fields["nodes"]), "inner": inner}))
    outlook = None if data.get("outlook") is None else Outlook(**data["outlook"])
    return Plan(**{**data, "segments": tuple(segments), "model": tuple(data["model"]), "outlook": outlook})
