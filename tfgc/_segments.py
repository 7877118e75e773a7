"""Run a model segment by segment, and split it into models.

A segment is a pure function of the tensors that its nodes read from outside. A
tensor that only passes by is no argument of it. The `Runner` keeps live tensors
in a table and drops each after its last use.
"""

from tfgc import _trace
from tfgc._graph import Ref
from tfgc._recompute import Block


class Runner:
    """A model's `call`, run by a plan.

    Args:
        model: The model whose layers run.
        plan: The `Plan`.
        wrap: None, or `tf.recompute_grad` to use it in place of tfgc's own.
        compile_segments: Whether eager calls run compiled segments.
    """

    def __init__(self, model, plan, *, wrap=None, compile_segments=True):
        self.plan = plan
        self._program = _trace.Program(model)
        plan.check(self._program.graph)
        self._original = type(model).call
        self._model = model
        self._pieces = [
            _piece(self._program, segment, f"segment {i}, {segment}", wrap, compile_segments)
            for i, segment in enumerate(plan.segments)
        ]
        uses = {ref: i for i, (needed, _, _) in enumerate(self._pieces) for ref in needed}
        kept = set(self._program.outputs)
        self._release = [
            [ref for ref, last in uses.items() if last == i and ref not in kept] for i in range(len(self._pieces))
        ]

    def call(self, inputs, training=None, mask=None):
        """Stand in for the model's own `call`; `training=False` runs that one."""
        if training is False:
            return self._original(self._model, inputs, training=False, mask=mask)
        table = self._program.feed(inputs, mask)
        for (needed, produced, block), release in zip(self._pieces, self._release):
            made = block(*(table[ref] for ref in needed), training=training)
            table.update(zip(produced, made))
            for ref in release:
                del table[ref]
        return self._program.collect(table)


def _piece(program, segment, name, wrap, compiled):
    """The tensors that a segment reads and makes for others, and its `Block`."""
    needed, produced, release = interface(program.graph, segment.nodes)

    def run(*tensors, training):
        table = dict(zip(needed, tensors))
        program.run(segment.nodes, table, training, release)
        return [table[ref] for ref in produced]

    layers = program.layers(segment.nodes)
    frozen = lambda: tuple(layer.trainable for layer in layers)
    replay = segment.mode == "recompute"
    return needed, produced, Block(run, name=name, replay=replay, compiled=compiled, wrap=wrap, settings=frozen)


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
