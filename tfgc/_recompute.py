"""Run a function without storing its inside, and run it again for gradients.

The replay contract, for any function, Keras layer or model: the second run
draws the same random numbers, writes no state, sees the same surroundings, and
gives the gradients that a plain run would have given, None where that gave None
and sparse where that was sparse.

How: every Keras variable and every closed-over tensor is an argument of one
`tf.custom_gradient`; the first run of an eager call sees its arguments through
`tf.stop_gradient`, so no tape stores anything of it; the replay waits for the
gradient that asks for it.

Known weaknesses. A function that closes over a tensor or a plain `tf.Variable`
is traced at every eager call, to see what it closes over this time: call such
functions inside `tf.function`; the replay reads plain variables as they are by then.
Python side effects run twice, and tensors that they put aside have no gradient
(`self.last = x`, `np.random`). An output that the loss does not use counts as
used with a gradient of zero, so that what leads to it gets zeros, not None.
`tf.vectorized_map` drops the gradient of any `tf.custom_gradient`, so that the plain one is taken, and all is stored.
A `tf.function` that closes over a plain variable, holds a recomputed function and was differentiated before cannot be
differentiated through a `tf.while_loop` as well: TensorFlow keeps its backward pass and raises.
"""

import contextlib
import dataclasses
import functools
import warnings

import tensorflow as tf

from tfgc import _context, _effects, _functional, _replay
from tfgc._errors import NotReplayableWarning, OptionError, UnsupportedModelError

_COPIED = (
    "{} was recomputed inside of a tf.cond, tf.switch_case or tf.while_loop, and TensorFlow now differentiates a copy "
    "of that branch or body, which has nothing of what was stored; it does so for a tf.autodiff.ForwardAccumulator "
    "inside of a tf.function. Call there what is not recomputed (`__wrapped__` of the recomputed function, the model "
    "after tfgc.disable), or put the accumulator outside of the tf.function"
)


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
    if not callable(fn):
        raise OptionError(f"recompute takes a function, a layer or a model, not {fn!r}")
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
        settings: Gives what else the function's Python code depends on, as a
            hashable value; when that changes the function is traced again.
        again: What the second run calls: `fn` by default, or the same function
            whose parts are blocks, to be recomputed in turn.
    """

    def __init__(self, fn, *, name, replay=True, compiled=False, wrap=None, settings=tuple, again=None):
        self.name = name
        self._fn = fn
        self._again = again or fn
        self._replay = replay
        self._compiled = compiled
        self._wrap = wrap
        self._settings = settings
        self._known = {}
        self._warned = False

    def __call__(self, *args, **kwargs):
        compiled = self._compiled and tf.executing_eagerly()
        if not self._replay and not compiled:
            # As in segments that run again: what Keras compiles with XLA, such as grouped convolutions, needs more.
            inlined = contextlib.nullcontext() if tf.executing_eagerly() else _context.functions_inlined()
            with inlined:
                return self._fn(*args, **kwargs)
        packing = _functional.Packing((args, kwargs))
        tensors = packing.release()
        surroundings = _context.Surroundings()
        key = (packing.key, surroundings.key, compiled, self._settings())
        look = lambda: self._look(key, packing, surroundings, compiled)
        known = self._known.get(key) if tf.executing_eagerly() else None
        if isinstance(known, _effects.Effects):
            known = self._piece(packing, known, surroundings)
        piece = known or look()
        try:
            if piece.effects.obstacle is None:
                return self._run(piece, packing, tensors, look if known else None)
        except _functional.StaleEffectsError:
            piece = look()
            if piece.effects.obstacle is None:
                return self._run(piece, packing, tensors, None)
        self._warn(piece.effects.obstacle)
        return self._fn(*args, **kwargs)

    def _look(self, key, packing, surroundings, compiled):
        """Look at what the function touches, and remember that for eager calls."""
        try:
            effects = _effects.discover(self._fn, packing)
        except Exception as error:  # The plain run that follows raises what is the user's own mistake.
            told = f"{type(error).__name__}: {error}".partition("\n")[0]
            obstacle = f"it cannot be traced ({told}). Use TensorFlow operations for what depends on tensors"
            effects = _effects.Effects((), obstacle=obstacle)
            return self._piece(packing, effects, surroundings)
        if self._wrap is not None and (effects.captured or effects.variables):
            reason = "it closes over tensors or plain variables, which only tfgc's own wrapper follows: leave wrap out"
            effects = dataclasses.replace(effects, obstacle=reason)
        piece = self._piece(packing, effects, surroundings)
        if compiled and effects.obstacle is None:
            piece = self._known[key] = _replay.Compiled(piece)
        else:
            # What it closes over is looked up again when it matters, and not kept alive.
            self._known[key] = dataclasses.replace(effects, captured=())
        return piece

    def _piece(self, packing, effects, surroundings):
        return _replay.Piece(self._fn, packing, effects, surroundings, self.name, self._again)

    def _warn(self, obstacle):
        if self._replay and not self._warned:
            self._warned = True
            message = f"{self.name} cannot be run twice and is not recomputed: {obstacle}."
            warnings.warn(message, NotReplayableWarning, stacklevel=4)

    def _run(self, piece, packing, tensors, look_again):
        """Run by a piece; `look_again` makes a new one if this one was remembered."""
        effects = piece.effects
        if not tf.executing_eagerly():
            # Of the graph being built: the gradient of a branch or loop body finds no others.
            tensors = [_context.inside(x) for x in tensors]
        inputs = [*tensors, *_context.read(effects.reads)]
        if _context.has_tangents([*inputs, *map(tf.convert_to_tensor, effects.variables)]):
            return self._plainly(packing, tensors)
        sources = _sources(inputs, len(tensors), effects.reads)
        if not self._replay:
            run = piece.forward([x if i in sources else tf.stop_gradient(x) for i, x in enumerate(inputs)])
            return run.finish(run.tensors)
        if self._wrap is not None:
            return _wrapped(self._wrap, piece, inputs, sources)
        if isinstance(piece, _replay.Compiled):
            with tf.init_scope():
                run = piece.forward(inputs)
            return run.finish(_attach(run, piece, inputs, sources))
        # No eager tape may store anything of this run. A graph keeps what its gradients read and no more, and
        # tf.vectorized_map, which forgets that a gradient was replaced, needs the plain one.
        flowing = () if tf.executing_eagerly() else sources
        run = piece.forward([x if i in flowing else tf.stop_gradient(x) for i, x in enumerate(inputs)])
        if _context.has_tangents(run.tensors):
            return self._plainly(packing, tensors)
        if look_again is not None and _context.is_recorded(run.tensors):
            # Something is recorded although every argument was stopped: the
            # function closes over a tensor or variable that it did not before.
            piece = look_again()
        return run.finish(_attach(run, piece, inputs, sources))

    def _plainly(self, packing, tensors):
        """For forward mode, which stores nothing for later: there is nothing to save."""
        args, kwargs = packing.unpack(tensors)
        return self._fn(*args, **kwargs)


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
    first, known = run.without_tensors(), _context.closed_over()

    def backward(*upstream):
        if not _context.reaches(known):
            raise UnsupportedModelError(_COPIED.format(piece.name))
        with _context.closing_over(known):
            return piece.backward(inputs, sources, first, upstream)

    @tf.custom_gradient
    def attach(*_):
        results = [tensors[i] for i in positions]
        return [tf.stop_gradient(x) for x in results] if tf.executing_eagerly() else results, backward

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
