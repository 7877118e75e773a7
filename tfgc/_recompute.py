"""Run a function without storing its inside, and run it again for gradients.

The replay contract, for any function, Keras layer or model: the second run
draws the same random numbers, writes no state, sees the same surroundings, and
gives the gradients that a plain run would have given, None where that gave None
and sparse where that was sparse.

How: every Keras variable and every closed-over tensor is an argument of one
`tf.custom_gradient`; the first run sees its arguments through
`tf.stop_gradient`, so no tape stores anything of it; the replay waits for the
gradient that asks for it.

Known weaknesses. A function that closes over a tensor or a plain `tf.Variable`
is traced at every eager call, to see what it closes over this time: call such
functions inside `tf.function`. Python side effects run twice.
"""

import contextlib
import dataclasses
import functools
import warnings

import tensorflow as tf

from tfgc import _context, _functional
from tfgc._errors import NotReplayableWarning, ReplayMismatchError

_RULE = "A function that is recomputed must depend on nothing but its arguments and variables."


def recompute(fn):
    """Return `fn`, storing only its inputs for the backward pass.

    A drop-in for `tf.recompute_grad` that gives the gradients of plain
    `fn`: dropout masks, statistics, masks, auxiliary losses, closed-over tensors,
    None and sparse gradients included. It costs one more run of `fn` per
    gradient call; memory inside `fn` is freed until then.

    Args:
        fn: Any function of tensors (in any nesting), a Keras layer or a model.

    Returns:
        A callable with the arguments and results of `fn`, which stays
        reachable as `__wrapped__`. A function that cannot be run twice (raw
        stateful `tf.random`, writes to a plain `tf.Variable`, `tf.py_function`)
        is run as it is, with a `NotReplayableWarning` that names the op.

    Raises:
        ReplayMismatchError: In the backward pass, if the second run gives
            other shapes or dtypes than the first.
        UnsupportedModelError: If called on a symbolic `keras.KerasTensor`.

    Example:
        >>> import tensorflow as tf, tfgc
        >>> square = tfgc.recompute(lambda x: x * x)
        >>> x = tf.constant(3.0)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = square(x)
        >>> float(tape.gradient(y, x))
        6.0

    Reference: Chen et al. 2016, "Training Deep Nets with Sublinear Memory
    Cost", arXiv:1604.06174.
    """
    block = Block(fn, name=getattr(fn, "name", getattr(fn, "__name__", type(fn).__name__)))

    # Keras layers are callables whose attributes are not a function's.
    @functools.wraps(fn, assigned=("__doc__", "__name__", "__module__"), updated=())
    @tf.autograph.experimental.do_not_convert
    def recomputed(*args, **kwargs):
        return block(*args, **kwargs)

    return recomputed


class Block:
    """A function run as one differentiable piece: recomputed, or kept whole.

    Args:
        fn: The function.
        name: What messages call it.
        replay: Whether gradients come from a second run. If not, TensorFlow
            keeps what the backward pass needs.
        compiled: Whether eager calls go through `tf.function`s, one for each
            direction.
        wrap: What makes a pure function recomputed: None for tfgc's own, or
            `tf.recompute_grad`.
    """

    def __init__(self, fn, *, name, replay=True, compiled=False, wrap=None):
        self.name = name
        self._fn = fn
        self._replay = replay
        self._compiled = compiled
        self._wrap = wrap
        self._effects = {}
        self._functions = {}
        self._warned = False

    def __call__(self, *args, **kwargs):
        if not self._replay and not (self._compiled and tf.executing_eagerly()):
            return self._fn(*args, **kwargs)
        packing = _functional.Packing((args, kwargs))
        tensors = packing.release()
        surroundings = _context.Surroundings()
        key = (packing.key, surroundings.key)
        effects = self._effects.get(key) if tf.executing_eagerly() else None
        fresh = effects is None
        if fresh:
            effects = self._discover(packing, key)
        if effects.obstacle is None:
            try:
                return self._run(packing, tensors, surroundings, effects, key, fresh)
            except _functional.StaleEffectsError:
                effects = self._discover(packing, key)
                return self._run(packing, tensors, surroundings, effects, key, True)
        if self._replay and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.name} cannot be run twice and is not recomputed: {effects.obstacle}. "
                "Draw random numbers with keras.random, and keep state in Keras variables "
                "(`self.add_weight`), to let tfgc recompute it.",
                NotReplayableWarning,
                stacklevel=4,
            )
        return self._fn(*args, **kwargs)

    def _discover(self, packing, key):
        try:
            effects = _functional.discover(self._fn, packing)
        except Exception as error:  # The plain run that follows raises what is the user's own mistake.
            effects = _functional.Effects((), obstacle=f"it cannot be traced ({type(error).__name__})")
        if self._wrap is not None and (effects.captured or effects.variables):
            effects = dataclasses.replace(effects, obstacle="it closes over tensors or plain variables")
        # What it closes over is looked up again when it matters, and not kept alive.
        self._effects[key] = dataclasses.replace(effects, captured=())
        return effects

    def _run(self, packing, tensors, surroundings, effects, key, fresh):
        inputs = [*tensors, *_context.read(effects.reads)]
        if _context.has_tangents(inputs):
            return self._plainly(packing, tensors)
        sources = _sources(inputs, len(tensors), effects.reads)
        piece = _Piece(self._fn, packing, effects, surroundings, self.name)
        eager = tf.executing_eagerly()
        if eager and self._compiled:
            if key not in self._functions or fresh:
                self._functions[key] = _Compiled(piece)
            piece = self._functions[key]
        if not self._replay:
            run = piece.forward([x if i in sources else tf.stop_gradient(x) for i, x in enumerate(inputs)])
            return run.finish(run.tensors)
        if self._wrap is not None:
            return _wrapped(self._wrap, piece, inputs, sources)
        if eager and self._compiled:
            with tf.init_scope():
                run = piece.forward(inputs)
        else:
            run = piece.forward([tf.stop_gradient(x) for x in inputs])
            if _context.has_tangents(run.tensors):
                return self._plainly(packing, tensors)
            if eager and not fresh and _context.is_recorded(run.tensors):
                # Something is recorded although every argument was stopped: the
                # function closes over a tensor or variable that it did not before.
                piece.effects = self._discover(packing, key)
        return run.finish(_attach(run, piece, inputs, sources))

    def _plainly(self, packing, tensors):
        """For forward mode, which stores nothing for later: there is nothing to save."""
        args, kwargs = packing.unpack(tensors)
        return self._fn(*args, **kwargs)


class _Piece:
    """Both directions of a block, for one structure of arguments."""

    def __init__(self, fn, packing, effects, surroundings, name):
        self.effects = effects
        self._fn = fn
        self._packing = packing
        self.surroundings = surroundings
        self._name = name

    def forward(self, inputs):
        """Run on `inputs`: the argument tensors, then the values of the variables."""
        n = len(self._packing.specs)
        return _functional.run(self._fn, self._packing, inputs[:n], self.effects.reads, inputs[n:])

    def backward(self, inputs, sources, first, upstream):
        """Run again and return a gradient for each source and closed-over thing.

        `first` is the first run without its tensors, `upstream` the gradients
        of its differentiable tensors.
        """
        n = len(self._packing.specs)
        with self.surroundings.restored(), _fence(upstream) as wait:
            # A copy of its own for each, since one tensor may be passed twice.
            held = [wait(x) for x in inputs[:n]] + inputs[n:]
            captured = [_inside(t) for t in self.effects.captured]
            with tf.GradientTape() as tape:
                tape.watch([held[i] for i in sources] + captured)
                try:
                    again = self.forward(held)
                except _functional.StaleEffectsError as error:
                    raise ReplayMismatchError(
                        f"The second run of {self._name} reads the variable {error}, which the first did not. {_RULE}"
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
                f"The second run of {self._name} did not repeat the first.\n"
                f"  first:  {_describe(first.specs)}\n  second: {_describe(specs)}\n{_RULE}"
            )


class _Compiled:
    """A piece whose two directions are `tf.function`s, for eager callers.

    The backward function drops the part of the replay that no gradient reads.
    """

    def __init__(self, piece):
        self.effects, self.surroundings = piece.effects, piece.surroundings
        self._piece = piece
        self._forward = tf.function(self._trace_forward, autograph=False, reduce_retracing=True)
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

            function = tf.function(trace_backward, autograph=False, reduce_retracing=True)
            self._backward[tuple(sources)] = function
        return function(inputs, list(upstream))


def _sources(inputs, n_arguments, variables):
    """Positions of the inputs that some gradient may flow to."""
    flows = [x.dtype.is_floating or x.dtype.is_complex for x in inputs]
    for i, variable in enumerate(variables, start=n_arguments):
        flows[i] &= bool(variable.trainable)
    if tf.executing_eagerly():
        # Every tape that could ask is active by now. A graph prunes by itself.
        for i, x in enumerate(inputs[:n_arguments]):
            flows[i] &= _context.is_recorded([x])
    return [i for i, f in enumerate(flows) if f]


def _attach(run, piece, inputs, sources):
    """The tensors of `run`, with gradients that come from a replay."""
    effects = piece.effects
    arguments = [inputs[i] for i in sources]
    arguments += [*effects.captured, *(tf.convert_to_tensor(v) for v in effects.variables)]
    positions = run.differentiable
    if not arguments or not positions:
        return run.tensors
    tensors = list(run.tensors)
    first = run.without_tensors()

    @tf.custom_gradient
    def attach(*_):
        return [tf.stop_gradient(tensors[i]) for i in positions], lambda *upstream: piece.backward(
            inputs, sources, first, upstream
        )

    for i, tensor in zip(positions, attach(*arguments)):
        tensors[i] = tensor
    return tensors


def _wrapped(wrap, piece, inputs, sources):
    """Let another wrapper recompute the piece: it is a pure function by now."""
    runs = []

    def pure(*values):
        filled = list(inputs)
        for i, value in zip(sources, values):
            filled[i] = value
        with piece.surroundings.restored() if runs else contextlib.nullcontext():
            run = piece.forward(filled)
        if not runs:
            runs.append(run)
        return [run.tensors[i] for i in run.differentiable]

    outputs = wrap(pure)(*(inputs[i] for i in sources))
    tensors = list(runs[0].tensors)
    for i, tensor in zip(runs[0].differentiable, outputs):
        tensors[i] = tensor
    return runs[0].finish(tensors)


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


def _inside(tensor):
    """The tensor that stands for `tensor` in the graph being built."""
    return tensor if tf.executing_eagerly() else tf.identity(tensor).op.inputs[0]


def _describe(specs):
    return ", ".join(f"{spec.dtype.name}{spec.shape}" for spec in specs)
