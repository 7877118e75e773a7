"""The two directions of a recomputed function: run it, and run it again for gradients.

Invariant: the second run sees the tensors, variable values and surroundings of the first,
starts no earlier than the gradient that asks for it, and is not merged with the
first by Grappler or XLA.
"""

import contextlib
import dataclasses
import functools

import tensorflow as tf

from tfgc import _context, _functional, _ordering
from tfgc._errors import ReplayMismatchError

_RULE = "A function that is recomputed must depend on nothing but its arguments and variables."


class Piece:
    """Both directions of a block, for one structure of arguments.

    `again` is what the second run calls: `fn`, or the same function with parts that are recomputed in turn.
    """

    def __init__(self, fn, packing, effects, surroundings, name, again):
        self.effects = effects
        self._fn = fn
        self._again = again
        self._packing = packing
        self.surroundings = surroundings
        self.name = name

    def forward(self, inputs):
        """Run on `inputs`: the argument tensors, then the values of the variables."""
        return self._run(self._fn, inputs)

    def _run(self, fn, inputs):
        n = len(self._packing.specs)
        return _functional.run(fn, self._packing, inputs[:n], self.effects.reads, inputs[n:])

    def backward(self, inputs, sources, first, upstream):
        """Run again and return a gradient for each source and closed-over thing.

        `first` is the first run without its tensors, `upstream` the gradients
        of its differentiable tensors.
        """
        n = len(self._packing.specs)
        with self.surroundings.restored(), _fence(upstream) as wait, _ordering.one_after_another():
            # A copy of its own for each, since one tensor may be passed twice.
            held = [wait(x) for x in inputs[:n]] + [_context.inside(x) for x in inputs[n:]]
            captured = [_context.inside(t) for t in self.effects.captured]
            with tf.GradientTape() as tape:
                tape.watch([held[i] for i in sources] + captured)
                try:
                    again = self._run(self._again, held)
                except _functional.StaleEffectsError as error:
                    raise ReplayMismatchError(
                        f"The second run of {self.name} reads the variable {error}, which the first did not. {_RULE}"
                    ) from None
            self._check(first, again)
            return tape.gradient(
                [again.tensors[i] for i in first.differentiable],
                [held[i] for i in sources] + captured + list(self.effects.variables),
                output_gradients=list(upstream),
            )

    def _check(self, first, again):
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in again.tensors]
        same = len(specs) == len(first.specs) and all(
            a.dtype == b.dtype and a.shape.is_compatible_with(b.shape) for a, b in zip(first.specs, specs)
        )
        if not same:
            raise ReplayMismatchError(
                f"The second run of {self.name} did not repeat the first.\n"
                f"  first:  {_describe(first.specs)}\n  second: {_describe(specs)}\n{_RULE}"
            )


class Compiled:
    """A piece whose two directions are `tf.function`s, for eager callers.

    The backward function drops the part of the replay that no gradient reads.
    """

    def __init__(self, piece):
        self.effects, self.surroundings = piece.effects, piece.surroundings
        self._piece = piece
        self._forward = _function(self._trace_forward)
        self._backward = {}
        self._layout = None

    def _trace_forward(self, inputs):
        run = self._piece.forward(inputs)
        # One backward function serves many shapes, so it holds none of them.
        ranks = [tf.TensorSpec(None if s.shape.rank is None else [None] * s.shape.rank, s.dtype) for s in run.specs]
        self._layout = dataclasses.replace(run, tensors=None, specs=ranks)
        return run.tensors

    def forward(self, inputs):
        tensors = self._forward(inputs)
        return dataclasses.replace(self._layout, tensors=tensors)

    def backward(self, inputs, sources, first, upstream):
        function = self._backward.get(tuple(sources))
        if function is None:

            def trace_backward(inputs, upstream):
                return self._piece.backward(inputs, sources, first, upstream)

            function = _function(trace_backward)
            self._backward[tuple(sources)] = function
        return function(inputs, list(upstream))


def _function(python_function):
    """A `tf.function` of its own: TensorFlow warns of retracing by code object, and a `partial` has none."""
    return tf.function(functools.partial(python_function), autograph=False, reduce_retracing=True)


@contextlib.contextmanager
def _fence(upstream):
    """Yield a function that makes a tensor wait until `upstream` is there."""
    if tf.executing_eagerly():
        yield tf.identity
    elif _context.in_xla():
        # XLA drops control dependencies. It cannot know that this is zero, and
        # unlike 0 * upstream it stays zero when a gradient overflows.
        total = tf.add_n([tf.cast(tf.abs(tf.reduce_sum(u)), tf.float32) for u in upstream])
        never = tf.math.is_nan(total) & tf.math.is_inf(total)
        yield lambda x: x | never if x.dtype.is_bool else x + tf.cast(never, x.dtype)
    else:
        with tf.control_dependencies(list(upstream)):
            yield tf.identity


def _describe(specs):
    return ", ".join(f"{spec.dtype.name}{spec.shape}" for spec in specs)
