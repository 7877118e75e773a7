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

from tfgc import _context

_TURNS = contextvars.ContextVar("turns", default=None)


@contextlib.contextmanager
def one_after_another():
    """Order the backward passes of the nodes that run, and are differentiated, in here."""
    if tf.executing_eagerly():
        yield
        return
    turns = _Turns()
    token = _TURNS.set(turns)
    try:
        yield
    finally:
        _TURNS.reset(token)
    turns.settle()


def turns_of(graph, names):
    """The turns that nodes run in a row have to take; None where there are none, or each reads only the one before."""
    chain = all(
        ref.node == before
        for before, name in itertools.pairwise(names)
        for ref in graph.nodes[graph.position[name]].inputs
    )
    return None if chain else _TURNS.get()


class _Turns:
    def __init__(self):
        self._starts, self._ends = [], []  # of each node: operations

    def take(self, step, function, table):
        """Call the next node, noting where its backward pass will start and end."""
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

        given = {ref: _passed(table[ref], end) for _, ref in step.sources}
        return [_passed(tensor, start) for tensor in step.call(function, given)]

    def settle(self):
        """Let every start wait for the ends of the next node that has any."""
        ends = []
        for starts, own in zip(reversed(self._starts), reversed(self._ends)):
            for start in starts:
                _context.wait_for(start, ends)
            ends = own or ends


def _passed(tensor, backward):
    """`tensor`, with a function that its gradient goes through."""
    if not (tensor.dtype.is_floating and _context.is_recorded([tensor])):
        return tensor

    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), backward

    passed = identity(tensor)
    if getattr(tensor, "_keras_mask", None) is not None:
        passed._keras_mask = tensor._keras_mask
    return passed
