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
import warnings

import tensorflow as tf

from tfgc._errors import NotReplayableWarning, UnsupportedModelError, one_line
from tfgc._framework import graph_building, private_api, tensor_attributes
from tfgc._pure import functional, replay_checksums, side_effects, tensor_packing
from tfgc._replay.forward_backward import CompiledRecomputation, Recomputation, TracedReplay

# So many kinds of calls are compiled; a number that changes at every step makes a new kind each time.
_MOST = 64
_COPIED = (
    "{} was recomputed inside of a tf.cond, tf.switch_case or tf.while_loop, and TensorFlow now differentiates a copy "
    "of that branch or body, which has nothing of what was stored; it does so for a tf.autodiff.ForwardAccumulator "
    "inside of a tf.function. Call there what is not recomputed (`__wrapped__` of the recomputed function, the model "
    "after tfgc.disable), or put the accumulator outside of the tf.function"
)


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
        twin: A `Twin` whose block does the same with other variables, so that what was
            found out and traced there serves here too.
        loose: Whether tensors that the function finds by itself may be others in each call, so that a call
            that reads any is not compiled.
    """

    def __init__(
        self, fn, *, name, replay=True, compiled=False, wrap=None, settings=tuple, again=None, twin=None, loose=False
    ):
        self.name = name
        self._fn = fn
        self._again = again or fn
        self._replay = replay
        self._compiled = compiled
        self._wrap = wrap
        self._settings = settings
        self._twin = twin
        self._loose = loose
        self._known = {}
        self._quick = {}
        self._by_shape = False
        self._warned = False

    def __call__(self, *args, **kwargs):
        compiled = self._compiled and tf.executing_eagerly()
        if not self._replay and not compiled:
            return self._fn(*args, **kwargs)
        surroundings = private_api.CallState()
        call = lambda: self._fn(*args, **kwargs)
        # A compiled piece holds the plain variables that it reads, of which each replica has its own.
        replica = private_api.replica() if tf.executing_eagerly() else None
        around = (surroundings.key, compiled, replica, self._settings())
        flags = _plain_key(args, kwargs, self._by_shape) if compiled else None
        quick = None if flags is None else (flags, around)
        piece = self._quick.get(quick)
        if piece is not None:
            # For a new shape the function is traced again, and may then read another variable.
            with contextlib.suppress(functional.StaleEffectsError):
                return self._run(piece, call, list(args), None)
            self._by_shape, quick = True, None
        packing = tensor_packing.Packing((args, kwargs))
        tensors = packing.release()
        if compiled and not (packing.tells_all and len(self._known) < _MOST):
            # What a trace would freeze may be another thing in the next call.
            compiled = False
            around = (surroundings.key, False, replica, self._settings())
            if not self._replay:
                return call()
        key = (packing.key, packing.shapes if self._by_shape else None, around)
        look = lambda: self._look(key, packing, surroundings, compiled)
        known = self._known.get(key) if tf.executing_eagerly() else None
        if isinstance(known, side_effects.Effects):
            known = self._piece(packing, known, surroundings)
        piece = known or look()
        try:
            if piece.effects.obstacle is None:
                result = self._run(piece, call, tensors, look if known else None)
                if quick is not None and isinstance(piece, CompiledRecomputation):
                    self._quick[quick] = piece
                return result
        except functional.StaleEffectsError:
            self._by_shape, self._twin = True, None
            key = (packing.key, packing.shapes, around)
            piece = self._look(key, packing, surroundings, compiled)
            if piece.effects.obstacle is None:
                return self._run(piece, call, tensors, None)
        self._warn(piece.effects.obstacle)
        return call()

    def _look(self, key, packing, surroundings, compiled):
        """Look at what the function touches, and remember that for eager calls."""
        shared = self._as_twin(key)
        if isinstance(shared, CompiledRecomputation):
            self._known[key] = shared
            return shared
        try:
            effects = shared or side_effects.discover(self._fn, packing)
        except Exception as error:  # The plain run that follows raises what is the user's own mistake.
            obstacle = f"it cannot be traced ({one_line(error)}). Use TensorFlow operations for what depends on tensors"
            effects = side_effects.Effects((), obstacle=obstacle)
            return self._piece(packing, effects, surroundings)
        if self._wrap is not None and (effects.captured or effects.variables or effects.draws):
            reason = (
                "it closes over tensors or plain variables, or draws raw random numbers, which only tfgc's own wrapper "
                "follows: leave wrap out"
            )
            effects = dataclasses.replace(effects, obstacle=reason)
        compiled = compiled and effects.obstacle is None
        compiled = compiled and not (effects.captured or effects.chooses or (effects.constants and self._loose))
        piece = self._piece(packing, effects, surroundings, compiled)
        if effects.chooses:
            # The next call chooses anew, and may then touch other things.
            return piece
        # Its first run sees what Python holds by then, so the traced second one must not be older.
        known = self._settings is not tuple and not effects.constants and not effects.captured
        traced = isinstance(piece, TracedReplay) and packing.tells_all and len(self._known) < _MOST
        if compiled or (traced and known):
            self._known[key] = piece
        else:
            # What it closes over is looked up again when it matters, and not kept alive.
            self._known[key] = dataclasses.replace(effects, captured=())
        return piece

    def _as_twin(self, key):
        """What the twin's block knows of such a call, with the variables of this one; None if that is nothing."""
        twin = self._twin if self._twin is not None and self._twin.alike() else None
        known = None if twin is None else twin.block._known.get(key)
        effects = known.effects if isinstance(known, CompiledRecomputation) else known
        if effects is None or effects.obstacle is not None or effects.variables:
            return None
        reads, writes = self._twin.renamed(effects.reads), self._twin.renamed(effects.writes)
        if reads is None or writes is None:
            return None
        effects = dataclasses.replace(effects, reads=tuple(reads), writes=tuple(writes))
        return known.renamed(effects, self._twin.renamed) if isinstance(known, CompiledRecomputation) else effects

    def _piece(self, packing, effects, surroundings, compiled=False):
        piece = Recomputation(self._fn, packing, effects, surroundings, self.name, self._again)
        if compiled:
            return CompiledRecomputation(piece)
        return TracedReplay(piece) if effects.draws and tf.executing_eagerly() else piece

    def _warn(self, obstacle):
        if self._replay and not self._warned:
            self._warned = True
            message = f"{self.name} cannot be run twice and is not recomputed: {obstacle}."
            warnings.warn(message, NotReplayableWarning, stacklevel=4)

    def _run(self, piece, call, tensors, look_again):
        """Run by a piece; `look_again` makes a new one if this one was remembered.

        `call` runs plainly: for forward mode, which stores nothing for later, there is nothing to save.
        """
        effects = piece.effects
        tensors = [x for i, x in enumerate(tensors) if i not in effects.unread]
        if not tf.executing_eagerly():
            # Of the graph being built: the gradient of a branch or loop body finds no others.
            tensors = [graph_building.inside(x) for x in tensors]
        inputs = [*tensors, *private_api.read(effects.reads)]
        if private_api.has_tangents([*inputs, *map(tf.convert_to_tensor, effects.variables)]):
            return call()
        sources = _sources(inputs, len(tensors), effects.reads)
        if not self._replay:
            run = piece.forward([x if i in sources else tf.stop_gradient(x) for i, x in enumerate(inputs)])
            return run.finish(run.tensors)
        if self._wrap is not None:
            return _wrapped(self._wrap, piece, inputs, sources)
        if piece.records_nothing:
            with private_api.no_recording():
                run = piece.forward(inputs)
            return run.finish(_attach(run, piece, inputs, sources))
        # No eager tape may store anything of this run. A graph keeps what its gradients read and no more, and
        # tf.vectorized_map, which forgets that a gradient was replaced, needs the plain one.
        flowing = () if tf.executing_eagerly() else sources
        run = piece.forward([x if i in flowing else tf.stop_gradient(x) for i, x in enumerate(inputs)])
        if private_api.has_tangents(run.tensors):
            return call()
        if look_again is not None and private_api.is_recorded(run.tensors):
            # Something is recorded although every argument was stopped: the
            # function closes over a tensor or variable that it did not before.
            piece = look_again()
        return run.finish(_attach(run, piece, inputs, sources))


def _plain_key(args, kwargs, by_shape):
    """Tells calls apart that are nothing but eager tensors and flags; None for all others."""
    if not all(isinstance(x, tf.Tensor) and not tensor_attributes.attributes(x) for x in args):
        return None
    if not all(flag is None or isinstance(flag, bool) for flag in kwargs.values()):
        return None
    shapes = map(private_api.shape_of, args)
    sizes = tuple(shapes) if by_shape else tuple(map(len, shapes))
    return tuple(x.dtype for x in args), sizes, tuple(kwargs.items())


def _sources(inputs, n_arguments, variables):
    """Positions of the inputs that some gradient may flow to."""
    flows = [x.dtype.is_floating or x.dtype.is_complex for x in inputs]
    for i, variable in enumerate(variables, start=n_arguments):
        flows[i] &= bool(variable.trainable)
    if tf.executing_eagerly():
        # Every tape that could ask is active by now. A graph prunes by itself.
        for i, x in enumerate(inputs[:n_arguments]):
            flows[i] &= private_api.is_recorded([x])
    return [i for i, f in enumerate(flows) if f]


def _attach(run, piece, inputs, sources):
    """The tensors of `run`, with gradients that come from a replay."""
    effects = piece.effects
    arguments = [inputs[i] for i in sources]
    arguments += [*effects.captured, *(tf.convert_to_tensor(v) for v in effects.variables)]
    positions = run.differentiable
    if not arguments or not positions:
        return run.tensors
    tensors, draws = list(run.tensors), run.draws
    if tf.executing_eagerly():
        # What hangs on an argument must not live as long as the tape does.
        inputs = [tf.identity(x) if tensor_attributes.attributes(x) else x for x in inputs]
    first, checksums, known = run.without_tensors(), run.checksums, graph_building.captures_so_far()

    def backward(*upstream):
        if not graph_building.reaches(known):
            raise UnsupportedModelError(_COPIED.format(piece.name))
        with graph_building.captures_redirected(known):
            gradients, again = piece.backward(inputs, sources, first, upstream, draws)
            if not checksums:
                return gradients
            return replay_checksums.held(piece.name, [name for name, _ in first.labels], checksums, again, gradients)

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
