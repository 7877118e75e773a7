"""Run a model segment by segment, and split it into models.

A segment is a pure function of the tensors that its nodes read from outside. A
tensor that only passes by is no argument of it. The `Runner` keeps live tensors
in a table and drops each after its last use.

A segment with an inner plan first runs its nodes plainly, as any other; its replay
runs the inner plan, whose segments are blocks in turn, and so on to any depth.
Invariant: both runs take the nodes in one order, that of the innermost plans, since
random numbers and statistics come in the order of the calls.

Known weakness: in eager calls that are not compiled, each level of a nest holds its
upstream gradient and its repeated outputs until it is done, so that many levels can
peak above two.
"""

import dataclasses

import tensorflow as tf

from tfgc._core.graph import Ref
from tfgc._errors import OptionError, PlanMismatchError
from tfgc._framework import backward_order, layer_settings
from tfgc._pure import functional
from tfgc._replay import call_checks
from tfgc._replay.block import Block
from tfgc._tracing import keras_graph
from tfgc._training import shared_traces


class Runner:
    """A model's `call`, run by a plan.

    A call on a model whose graph has changed, such as a Sequential after `add`, follows: by the same plan where it
    still fits, else by a new one.

    Args:
        model: The model whose layers run.
        plan: The `Plan`.
        replan: Makes a plan for the model when that has changed; None where the plan is the user's own.
        wrap: None, or `tf.recompute_grad` to use it in place of tfgc's own.
        compile_segments: Whether eager calls run compiled segments.
        check_replay: Whether the layers of both runs are compared by checksums.
    """

    def __init__(self, model, plan, *, replan=None, wrap=None, compile_segments=True, check_replay=False):
        self._original = type(model).call
        self._model = model
        self._replan = replan
        self._how = (wrap, compile_segments, functional.note if check_replay else None)
        self._read(plan)

    def _read(self, plan):
        program = keras_graph.Program(self._model)
        plan.check(program.graph)
        self.plan, self._program = plan, program
        self._run = _chain(_How(program, *self._how), plan.segments, program.outputs)

    @property
    def is_current(self):
        """Whether the model still has the graph that was read."""
        return self._program.is_current

    def _follow(self):
        # Whoever calls may be tracing.
        with tf.init_scope():
            try:
                self._read(self.plan)
            except PlanMismatchError as error:
                if self._replan is None:
                    raise PlanMismatchError(
                        f"{self._model.name!r} has changed since it was enabled: {error} Then enable it again"
                    ) from error
                self._read(self._replan())

    def call(self, inputs, training=None, mask=None):
        """Stand in for the model's own `call`; `training=False` runs that one."""
        if training is False:
            return self._original(self._model, inputs, training=False, mask=mask)
        call_checks.refuse_tf1_graph(f"the enabled {self._model.name!r}")
        if call_checks.is_empty(inputs):
            return self._original(self._model, inputs, training=training, mask=mask)
        if not self.is_current:
            self._follow()
        table = self._program.feed(inputs, mask)
        self._run(table, training)
        return self._program.collect(table)

    call.is_patched_call = True


@dataclasses.dataclass(frozen=True)
class _How:
    """How segments run: on what, wrapped in what, compiled or not, and who is shown what each layer makes."""

    program: object
    wrap: object = None
    compiled: bool = False
    watch: object = None


def _chain(how, segments, kept, number=""):
    """A function that runs segments on a table of tensors and leaves `kept` in it.

    `number` begins their numbers in messages: that of the segment they make up, with a dot.
    """
    pieces, first_of_kind = [], {}
    for i, segment in enumerate(segments):
        pieces.append(_piece(how, segment, f"{number}{i}", first_of_kind))
    last = {ref: i for i, (needed, _, _) in enumerate(pieces) for ref in needed}
    releases = [[ref for ref, at in last.items() if at == i and ref not in kept] for i in range(len(pieces))]

    def run(table, training):
        turns = backward_order.turns()
        for (needed, produced, block), release in zip(pieces, releases):
            call = lambda given, needed=needed, block=block: block(*(given[ref] for ref in needed), training=training)
            made = turns.take(call, needed, table) if turns else call(table)
            table.update(zip(produced, made))
            for ref in release:
                del table[ref]

    return run


def _piece(how, segment, number, first_of_kind):
    """The tensors that a segment reads and makes for others, and its `Block`.

    `first_of_kind` holds the first of each kind of segment.
    """
    program, name = how.program, f"segment {number}, {segment}"
    nodes = _leaves(segment)
    needed, produced, release = interface(program.graph, nodes)
    settings = layer_settings.Settings(program.layers(nodes))

    def run(*tensors, training):
        table = dict(zip(needed, tensors))
        with settings.watched():
            program.run(nodes, table, training, release, how.watch)
        return [table[ref] for ref in produced]

    again = None
    if segment.inner is not None:
        if how.wrap is not None:
            raise OptionError(f"wrap={how.wrap!r} cannot follow the inner plan of {name}: leave wrap out")
        # Not compiled: a replay is either traced as a whole or meant to run op by op.
        inside = _chain(dataclasses.replace(how, compiled=False), segment.inner.segments, produced, f"{number}.")

        def again(*tensors, training):
            table = dict(zip(needed, tensors))
            inside(table, training)
            return [table[ref] for ref in produced]

    replay = segment.mode == "recompute"
    # What is watched is told by its own name.
    kind_now = lambda: None if how.watch else shared_traces.signature(program, segment, nodes, needed, produced)
    kind, twin = kind_now(), None
    if kind in first_of_kind:
        first, block, kind_of_first = first_of_kind[kind]
        alike = lambda: kind_now() is not None and kind_now() == kind_of_first()
        twin = shared_traces.Twin(block, shared_traces.renaming(program, first, nodes), alike)
    block = Block(
        run, name=name, replay=replay, compiled=how.compiled, wrap=how.wrap, settings=settings, again=again, twin=twin
    )
    if kind is not None:
        first_of_kind.setdefault(kind, (nodes, block, kind_now))
    return needed, produced, block


def _leaves(segment):
    """The nodes of a segment as its innermost plans order them."""
    if segment.inner is None:
        return segment.nodes
    return tuple(name for inner in segment.inner.segments for name in _leaves(inner))


def interface(graph, names):
    """What nodes read from outside, what others read of them, what dies inside.

    Returns:
        Two tuples of `Ref`s, and a mapping from a node to the `Ref`s that no one
        reads after it.
    """
    inside = set(names)
    needed, last = {}, {}
    for name in names:
        node = graph.nodes[graph.position[name]]
        needed.update((ref, None) for ref in node.inputs if ref.node not in inside)
        last.update((ref, name) for ref in node.inputs)
        last.update((Ref(name, i), name) for i in range(len(node.outputs)))
    outside = {ref for node in graph.nodes if node.name not in inside for ref in node.inputs} | set(graph.outputs)
    produced = tuple(ref for ref in graph.specs if ref.node in inside and ref in outside)
    release = {}
    for ref, name in last.items():
        if ref not in outside or ref.node not in inside:
            release.setdefault(name, []).append(ref)
    return tuple(needed), produced, release
