"""Let the backward passes of nodes run one after the other in the graph of a replay.

The executor starts whatever is ready: two branches of a residual block would be differentiated
at the same time, and what both need meanwhile would add up. Each node's backward pass is made
to wait for that of the node after it. Values are untouched; XLA, which drops control edges,
orders by itself.

Invariant: an edge leads from a node's backward pass to that of a node before it, so that there is no circle.
"""

import contextlib
import contextvars
import itertools

import tensorflow as tf

from tfgc._framework import graph_building, private_api, tensor_attributes

_OPEN = contextvars.ContextVar("open", default=None)


@contextlib.contextmanager
def sequential_backward():
    """Order the backward passes of the nodes and segments that run, and are differentiated, in here."""
    if tf.executing_eagerly():
        yield
        return
    opened = []
    token = _OPEN.set(opened)
    try:
        yield
    finally:
        _OPEN.reset(token)
    for turns in opened:
        turns.add_edges()


@contextlib.contextmanager
def unordered_backward():
    """Leave what runs in here out: its gradients come from elsewhere."""
    token = _OPEN.set(None)
    try:
        yield
    finally:
        _OPEN.reset(token)


def turns():
    """New turns for what runs in a row; None outside of `sequential_backward`."""
    opened = _OPEN.get()
    if opened is None:
        return None
    opened.append(BackwardChain())
    return opened[-1]


def is_chain(graph, names):
    """Whether each of the nodes reads only the one before, so that they take turns anyway."""
    return all(
        ref.node == before
        for before, name in itertools.pairwise(names)
        for ref in graph.nodes[graph.position[name]].inputs
    )


class BackwardChain:
    """What runs in a row, each to be differentiated after what follows it."""

    def __init__(self):
        self._starts, self._ends = [], []  # of each: tensors of its backward pass
        self._made = []  # tensors, by the last one

    def take(self, run, refs, table):
        """Run what is next, noting where its backward pass will start and end.

        `run` makes a list of tensors from a table of those that it reads, which are `refs` of `table`.
        """
        starts, ends = [], []
        self._starts.append(starts)
        self._ends.append(ends)

        def end(upstream):
            ends.append(upstream)
            return upstream

        def start(upstream):
            upstream = tf.identity(upstream)
            starts.append(upstream)
            return upstream

        with tf.control_dependencies(self._made):  # what runs now waits for what ran before
            given = {ref: _passed(table[ref], end) for ref in refs}
        made = run(given)
        self._made = tf.nest.flatten(made, expand_composites=True)
        return [_passed(tensor, start) for tensor in made]

    def add_edges(self):
        """Let every start wait for the ends of the next one that has any."""
        ends = []
        for starts, own in zip(reversed(self._starts), reversed(self._ends)):
            for start in starts:
                graph_building.wait_for(start, ends)
            ends = own or ends


def _passed(tensor, backward):
    """A copy of `tensor`, with a function that its gradient goes through; sparse and ragged ones as they are."""
    if not isinstance(tensor, tf.Tensor):
        return tensor

    def copy(value):
        if value.dtype.is_floating and private_api.is_recorded([value]):
            return tf.custom_gradient(lambda x: (tf.identity(x), backward))(value)
        return tf.identity(value)

    return tensor_attributes.copied(tensor, copy)
