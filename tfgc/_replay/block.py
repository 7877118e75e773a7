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
Python side effects run twice (`self.last = x`), and tensors that they put aside have no gradient;
random numbers of Python and NumPy are those of the first run again.
`tf.vectorized_map` drops the gradient of any `tf.custom_gradient`, so that the plain one is taken, and all is stored.
A `tf.function` that closes over a plain variable, holds a recomputed function and was differentiated before cannot be
differentiated through a `tf.while_loop` as well: TensorFlow keeps its backward pass and raises.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tfgc._errors import NotReplayableWarning, warn
from tfgc._framework import graph_building, private_api, tensor_attributes
from tfgc._pure import functional
from tfgc._replay import replayed_gradients
from tfgc._replay.fence import seeds_in_time
from tfgc._replay.known_calls import Call, Counterpart, Function, KnownCalls
from tfgc._replay.replayed_gradients import Inputs
from tfgc._replay.two_runs import TwoRuns


def block(
    fn: Callable,
    *,
    name: str,
    replay: bool = True,
    compiled: bool = False,
    share_traces_with: Counterpart | None = None,
    **options: Any,
) -> "KeptBlock | RecomputedBlock":
    """Make a function one differentiable piece: recomputed, or kept whole.

    Args:
        fn, name, options: The attributes of `Function`.
        replay: Whether gradients come from a second run. If not, TensorFlow keeps what the backward pass needs.
        compiled: Whether eager calls go through `tf.function`s, one for each direction.
        share_traces_with: A block that does the same with other variables, whose traces serve this one, too.
    """
    calls = KnownCalls(Function(fn, name, **options), share_traces_with)
    return RecomputedBlock(calls, compiled) if replay else KeptBlock(calls, compiled)


class _Block:
    """A function, run by what is known of its calls; subclasses say where gradients come from.

    If `compiled`, eager calls go through `tf.function`s; what cannot be compiled runs as it would without.
    """

    def __init__(self, calls: KnownCalls, compiled: bool) -> None:
        self.calls, self._is_compiled = calls, compiled
        self._warned = False
        self.obstacle: str | None = None  # why the call that came last was not run twice

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_compiled and tf.executing_eagerly():
            call = self.calls.call(args, kwargs, compiled=True)
            known = self.calls.find(call)
            if known is not None or self.calls.can_be_compiled(call):
                return self._run_call(call, known)
        return self._uncompiled(args, kwargs)

    def _uncompiled(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a call op by op, or in the graph being built."""
        raise NotImplementedError

    def _run_call(self, call: Call, known: TwoRuns | None) -> Any:
        """Run a call as a pure function, in the way that is `known` of its kind, or that a look at it shows."""
        recomputation = known or self.calls.look(call)
        obstacle = self.obstacle = recomputation.effects.obstacle
        if obstacle is None:
            try:
                return self._run(recomputation, call, is_new=known is None)
            except functional.StaleEffectsError:
                recomputation = self.calls.look_by_shape(call)
            obstacle = self.obstacle = recomputation.effects.obstacle
            if obstacle is None:
                return self._run(recomputation, call, is_new=True)
        self._warn(obstacle)
        return call.run_plainly()

    def _run(self, recomputation: TwoRuns, call: Call, is_new: bool) -> Any:
        effects = recomputation.effects
        if functional.returns_states(effects.writes):
            return call.run_plainly()
        tensors = [x for i, x in enumerate(call.tensors) if i not in effects.unread]
        waiting = call.on_host
        on_host = [i for i, x in enumerate(tensors) if id(x) in waiting]
        if not tf.executing_eagerly():
            # Of the graph being built: the gradient of a branch or loop body finds no others.
            tensors = [graph_building.capture(x) for x in tensors]
        # TensorFlow's tapes watch what is read, frozen weights too. Asked for is what they watched before.
        asked_for, frozen = self.calls.function.trained.asked_for(effects.reads)
        values, handles = private_api.read(effects.reads)
        inputs = [*tensors, *seeds_in_time(tensors, values)]
        read = handles.values() or values
        if private_api.has_tangents([*tensors, *read, *map(tf.convert_to_tensor, effects.variables)]):
            # Forward mode stores nothing for later, so there is nothing to save.
            return call.run_plainly()
        frozen, handles = ({len(tensors) + i: x for i, x in each.items()} for each in (frozen, handles))
        sources = sorted([*replayed_gradients.sources(inputs, len(tensors), asked_for), *frozen])
        made = self._differentiate(recomputation, call, Inputs(inputs, sources, on_host, frozen, handles), is_new)
        tensor_attributes.take_masks_off(call.arguments, effects.unmasked)
        return made

    def _differentiate(self, recomputation: TwoRuns, call: Call, inputs: Inputs, is_new: bool) -> Any:
        """Run on `inputs`, and attach gradients."""
        raise NotImplementedError

    def _warn(self, obstacle: str) -> None:
        if not self._warned:
            self._warned = True
            name = self.calls.function.name
            warn(f"{name} cannot be run twice and is not recomputed: {obstacle}.", NotReplayableWarning)


class KeptBlock(_Block):
    """A function that runs once: TensorFlow keeps what its backward pass needs."""

    def _uncompiled(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        function = self.calls.function
        if function.settings is not None:
            function.trained.note(function.settings.variables)
        return function.fn(*args, **kwargs)

    def _differentiate(self, recomputation: TwoRuns, call: Call, inputs: Inputs, is_new: bool) -> Any:
        inputs.record_reads()
        given = _stopped(inputs.tensors, inputs.sources)
        asked = recomputation.asked_outputs(given) if tf.executing_eagerly() else None
        if asked is None:
            run = recomputation.forward(given)
            return run.finish(run.tensors)
        run = recomputation.forward(asked.passing(given, inputs.sources))
        return run.finish(asked.noting(run.tensors))

    def _warn(self, obstacle: str) -> None:
        """Nothing is lost where the function was not to be recomputed."""


class RecomputedBlock(_Block):
    """A function that stores its inputs alone, and runs again for its gradient."""

    def _uncompiled(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        call = self.calls.call(args, kwargs, compiled=False)
        return self._run_call(call, self.calls.find(call))

    def _differentiate(self, recomputation: TwoRuns, call: Call, inputs: Inputs, is_new: bool) -> Any:
        if recomputation.records_nothing:
            run = recomputation.unrecorded(inputs.tensors)
            return run.finish(replayed_gradients.attach(run, recomputation, inputs, self.calls.function.owner))
        # No eager tape may store anything of this run. In a graph tf.vectorized_map needs the plain gradient.
        run = recomputation.forward(_stopped(inputs.tensors, () if tf.executing_eagerly() else inputs.sources))
        if private_api.has_tangents(run.tensors):
            return call.run_plainly()
        if not is_new and private_api.is_recorded(run.tensors):
            # Although every argument was stopped: it closes over a tensor or variable that it did not before.
            recomputation = self.calls.look(call)
        return run.finish(replayed_gradients.attach(run, recomputation, inputs, self.calls.function.owner))


def _stopped(inputs: Sequence[tf.Tensor], sources: Collection[int]) -> list[tf.Tensor]:
    """The inputs, of which only the sources let gradients through."""
    return [x if i in sources else tf.stop_gradient(x) for i, x in enumerate(inputs)]
