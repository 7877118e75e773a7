"""The two directions of a recomputed function: run it, and run it again for gradients.

Invariant: the second run sees the tensors, variable values and surroundings of the first,
starts no earlier than the gradient that asks for it, and is not merged with the
first by Grappler or XLA.
"""

import contextlib
import copy
import dataclasses
import functools
import itertools

import tensorflow as tf

from tfgc._errors import ReplayMismatchError
from tfgc._framework import backward_order, graph_building, private_api, shared_constants
from tfgc._pure import functional, python_random, random_draws, tensor_packing

_RULE = "A function that is recomputed must depend on nothing but its arguments and variables."


class Recomputation:
    """Both directions of a block, for one structure of arguments.

    `again` is what the second run calls: `fn`, or the same function with parts that are recomputed in turn.
    """

    records_nothing = False

    def __init__(self, fn, packing, effects, surroundings, name, again):
        self.effects = effects
        self._fn = fn
        self._again = again
        self._packing = packing.without(effects.unread)
        self.surroundings = surroundings
        self.name = name
        self._start = None

    def forward(self, inputs):
        """Run on `inputs`: the argument tensors, then the values of the variables."""
        self._start = python_random.state() if self.effects.chooses else None
        with backward_order.unordered_backward():
            return self._run(self._fn, inputs, random_draws.noted if self.effects.draws else contextlib.nullcontext)

    def _run(self, fn, inputs, draws):
        n = len(self._packing.specs)
        return functional.run(fn, self._packing, inputs[:n], self.effects.reads, inputs[n:], draws)

    def backward(self, inputs, sources, first, upstream, draws):
        """Run again; return a gradient for each source and closed-over thing, and the checksums noted.

        `first` is the first run without its tensors, `upstream` the gradients
        of its differentiable tensors, `draws` what it drew.
        """
        n = len(self._packing.specs)
        chosen = contextlib.nullcontext() if self._start is None else python_random.drawn_from(self._start)
        with self.surroundings.restored(), chosen, _fence(upstream) as wait, backward_order.sequential_backward():
            # A copy of its own for each, since one tensor may be passed twice.
            held = [wait(x) for x in inputs[:n]] + [graph_building.inside(x) for x in inputs[n:]]
            captured = [graph_building.inside(t) for t in self.effects.captured]
            drawn = [graph_building.inside(t) for t in draws]
            again_drawn = lambda _: random_draws.handed_in(drawn, self.name) if drawn else contextlib.nullcontext()
            with tf.GradientTape() as tape:
                tape.watch([held[i] for i in sources] + captured)
                try:
                    again = self._run(self._again, held, again_drawn)
                except functional.StaleEffectsError as error:
                    raise ReplayMismatchError(
                        f"The second run of {self.name} reads the variable {error}, which the first did not. {_RULE}"
                    ) from None
            self._check(first, again)
            gradients = tape.gradient(
                [again.tensors[i] for i in first.differentiable],
                [held[i] for i in sources] + captured + list(self.effects.variables),
                output_gradients=list(upstream),
            )
            return gradients, again.checksums

    def _check(self, first, again):
        """Layer by layer where checksums were noted, and what the whole returned."""
        named = [(name, [spec]) for name, spec in first.labels], [(name, [spec]) for name, spec in again.labels]
        results = ("its results", first.specs), ("its results", [tensor_packing.spec_of(t) for t in again.tensors])
        for one, other in [*itertools.zip_longest(*named, fillvalue=("nothing", [])), results]:
            if one[0] != other[0] or not _alike(one[1], other[1]):
                raise ReplayMismatchError(
                    f"The second run of {self.name} did not repeat the first.\n"
                    f"  first:  {one[0]}: {_describe(one[1])}\n  second: {other[0]}: {_describe(other[1])}\n{_RULE}"
                )


class CompiledRecomputation:
    """A piece whose two directions are `tf.function`s, for eager callers.

    The backward function drops the part of the replay that no gradient reads.
    """

    records_nothing = True

    def __init__(self, piece):
        self.effects, self.surroundings, self.name = piece.effects, piece.surroundings, piece.name
        self._piece = piece
        self._forward = _ConcreteCache(self._trace_forward)
        self._backward = {}
        self._layouts = {}
        self._rename = None

    def _trace_forward(self, inputs):
        run = self._piece.forward(inputs)
        # One backward function serves many shapes, so it holds none of them.
        labels = [(name, _of_any_size(spec)) for name, spec in run.labels]
        specs = [_of_any_size(s) for s in run.specs]
        layout = dataclasses.replace(run, tensors=None, draws=None, specs=specs, labels=labels)
        self._layouts[tf.compat.v1.get_default_graph()] = layout, private_api.call_context()
        return run.tensors + run.draws

    def renamed(self, effects, rename):
        """The same functions for other variables and layers; `rename` gives them for a list of these."""
        other = copy.copy(self)
        other.effects, other._rename = effects, rename
        return other

    def forward(self, inputs):
        before = private_api.call_context()
        function = self._forward.concrete([inputs])
        private_api.set_call_context(before)
        made = private_api.call_flat(function, inputs)
        layout, left = self._layouts[function.graph]
        private_api.set_call_context(left)
        tensors, draws = made[: len(layout.specs)], made[len(layout.specs) :]
        if self._rename is None:
            return dataclasses.replace(layout, tensors=tensors, draws=draws)
        layers, written = self._rename(layout.loss_layers), self._rename(layout.written)
        return dataclasses.replace(layout, tensors=tensors, draws=draws, loss_layers=layers, written=written)

    def backward(self, inputs, sources, first, upstream, draws):
        function = self._backward.get(tuple(sources))
        if function is None:

            def trace_backward(inputs, upstream, draws):
                return self._piece.backward(inputs, sources, first, upstream, draws)

            function = _ConcreteCache(trace_backward)
            self._backward[tuple(sources)] = function
        return function(inputs, list(upstream), list(draws))


class TracedReplay(CompiledRecomputation):
    """A piece that runs op by op, and again in a `tf.function`: only there can what it drew stand for what it draws."""

    records_nothing = False

    def forward(self, inputs):
        return self._piece.forward(inputs)


class _ConcreteCache:
    """A `tf.function` of lists of tensors, looked up by their shapes: their dtypes are those of the piece."""

    def __init__(self, python_function):
        # TensorFlow warns of retracing by code object, and a `partial` has none.
        partial = functools.partial(python_function)
        self._function = tf.function(partial, autograph=False, reduce_retracing=True)
        self._concrete = {}

    def concrete(self, lists):
        """The concrete function for lists of eager tensors."""
        key = tuple(private_api.shape_of(tensor) for given in lists for tensor in given)
        function = self._concrete.get(key)
        if function is None:
            function = self._concrete[key] = private_api.concrete(self._function, lists)
        return function

    def __call__(self, *lists):
        tensors = [tensor for given in lists for tensor in given]
        if not all(map(_is_plain, tensors)):
            return self._function(*lists)
        return private_api.call_flat(self.concrete(lists), tensors)


def _is_plain(tensor):
    """Eager, and no `tf.IndexedSlices`."""
    return isinstance(tensor, tf.Tensor) and not tf.is_symbolic_tensor(tensor)


@contextlib.contextmanager
def _fence(upstream):
    """Yield a function that makes a tensor wait until `upstream` is there."""
    if tf.executing_eagerly():
        yield tf.identity
    elif private_api.in_xla():
        # XLA drops control dependencies. It cannot know that this is zero, and
        # unlike 0 * upstream it stays zero when a gradient overflows.
        total = tf.add_n([tf.cast(tf.abs(tf.reduce_sum(u)), tf.float32) for u in upstream])
        never = tf.math.is_nan(total) & tf.math.is_inf(total)
        yield lambda x: x | never if x.dtype.is_bool else x + tf.cast(never, x.dtype)
    else:
        with shared_constants.shared(upstream), tf.control_dependencies(list(upstream)):
            yield tf.identity


def _alike(first, second):
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape.is_compatible_with(b.shape) for a, b in zip(first, second)
    )


def _of_any_size(spec):
    return tf.TensorSpec(None if spec.shape.rank is None else [None] * spec.shape.rank, spec.dtype)


def _describe(specs):
    return ", ".join(f"{spec.dtype.name}{spec.shape}" for spec in specs)
