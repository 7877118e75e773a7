"""Attach gradients that come from a second run to the results of the first run."""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfgc._errors import UnsupportedModelError
from tfgc._framework import (
    graph_building,
    graph_gradients,
    private_api,
    replay_order,
    tensor_attributes,
    variable_reads,
    waiting_updates,
    weight_gradients,
    xla_gradients,
)
from tfgc._framework.keras_models import TRACES
from tfgc._pure import replay_checksums
from tfgc._pure.functional import Run
from tfgc._replay import fence
from tfgc._replay.host_inputs import HostInputs
from tfgc._replay.two_runs import FirstRun, TwoRuns

COPIED_BRANCH = (
    "{} was recomputed inside tf.cond, tf.switch_case or tf.while_loop, and TensorFlow now differentiates a copy of "
    "that branch or body, which holds nothing of what was stored. It makes such a copy for a "
    "tf.autodiff.ForwardAccumulator inside a tf.function. Either call a function there that is not recomputed "
    "(`__wrapped__` of the recomputed function, the model after tfgc.disable), or create the accumulator outside the "
    "tf.function"
)


class Inputs(NamedTuple):
    """What a function runs on."""

    tensors: list[tf.Tensor]  # of its arguments, then the values of variables
    sources: list[int]  # positions of those that gradients flow to
    on_host: Collection[int]  # positions of those that wait for the replay in the host's memory
    frozen: Mapping[int, keras.Variable]  # of sources that count only if they train when gradients are asked for
    handles: Mapping[int, tf.Tensor]  # of the variables whose values no tape knows yet

    def record_reads(self) -> None:
        """Let the tapes that are active know of the values."""
        variable_reads.record_each([self.tensors[i] for i in self.handles], [*self.handles.values()])


def sources(inputs: Sequence[tf.Tensor], n_arguments: int, asked_for: Sequence[bool]) -> list[int]:
    """Positions of the inputs that some gradient may flow to: arguments, then the values of variables.

    `asked_for` says of each variable whether a gradient may be asked for.
    """
    in_graph = not tf.executing_eagerly()
    # Every tape that could ask is active by now. In a graph, unused gradients are pruned, unless they have effects.
    flows = [in_graph or private_api.is_recorded([x]) for x in inputs[:n_arguments]] + [*asked_for]
    return [i for i, x in enumerate(inputs) if flows[i] and (x.dtype.is_floating or x.dtype.is_complex)]


def attach(run: Run, recomputation: TwoRuns, given: Inputs, owner: keras.Layer | None) -> list[tf.Tensor]:
    """The tensors of `run`, with gradients that come from a replay; in a graph for as long as the `owner` lives."""
    effects, positions = recomputation.effects, run.differentiable
    arguments = [given.handles.get(i, given.tensors[i]) for i in given.sources]
    arguments += [*effects.captured, *(tf.convert_to_tensor(v) for v in effects.variables)]
    if not arguments or not positions:
        return run.tensors
    if not tf.executing_eagerly():
        waiting_updates.wait_in_this_graph()
    tensors, replay = list(run.tensors), _Replay(run, recomputation, given, owner)
    results = fence.in_memory([tensors[i] for i in positions])
    made = graph_gradients.attached(results, arguments, replay.backward, replay.asked)
    for i, tensor in zip(positions, made):
        tensors[i] = tensor
    return tensors


class _Replay:
    """What a tape keeps of a first run: all that its replay needs, and none of its results."""

    def __init__(self, run: Run, recomputation: TwoRuns, given: Inputs, owner: keras.Layer | None) -> None:
        inputs, sources, on_host, self._frozen, handles = given
        self._read = [i for i in sources if i in handles]
        self._reads = variable_reads.Reads([handles[i] for i in self._read]) if self._read else None
        recorded: set[int] = set()
        if tf.executing_eagerly():
            # What is attached to an argument must not live as long as the tape does.
            inputs = [tf.identity(x) if tensor_attributes.attributes(x) else x for x in inputs]
        else:
            recorded.update(i for i in sources if private_api.is_recorded([inputs[i]]))
        doubtful = frozenset(sources) - recorded if recorded else frozenset()
        self._host = HostInputs(inputs, on_host, recomputation.name) if on_host else None
        held = [] if self._host is not None and tf.executing_eagerly() else inputs
        backlog = weight_gradients.backlog()
        outline = dataclasses.replace(run.without_tensors(), loss_layers=[])
        self._first = FirstRun(held, sources, outline, run.draws, run.results, doubtful, backlog)
        self._name, self._checksums = recomputation.name, run.checksums
        self._held: Callable[[], TwoRuns | None] = lambda: recomputation
        if owner is not None and not tf.executing_eagerly():
            self._held = _held_by(owner, recomputation)
        self._number = next(replay_order.numbers)
        self._made = None if tf.executing_eagerly() else run.tensors[run.differentiable[0]].op
        self._captures = graph_building.captures_so_far()
        self.asked: set[int] = set()

    def backward(self, *upstream: tf.Tensor) -> Any:
        """The gradients of the arguments of `attached`, given those of its results."""
        recomputation = self._held()
        if recomputation is None:
            raise UnsupportedModelError(
                f"{self._name} was recomputed in a tf.function whose model is gone, and with it what was to run again: "
                "keep the model for as long as gradients go through that function"
            )
        first, asked, effects = self._first, frozenset(self.asked), recomputation.effects
        self.asked.clear()
        if 0 < len(asked) < len(upstream):
            first = dataclasses.replace(first, asked=asked)
        unwanted = {i for i, variable in self._frozen.items() if not variable.trainable}
        wanted = [i for i in first.sources if i not in unwanted]
        if not wanted and not effects.captured and not effects.variables:
            return [None] * len(first.sources)
        found = iter(self._gradients(recomputation, dataclasses.replace(first, sources=wanted), upstream))
        return [None if i in unwanted else next(found) for i in first.sources] + [*found]

    def _gradients(self, recomputation: TwoRuns, first: FirstRun, upstream: Sequence[tf.Tensor]) -> Any:
        if not graph_building.can_reach(self._captures):
            raise UnsupportedModelError(COPIED_BRANCH.format(self._name))
        with graph_building.redirect_captures(self._captures):
            around = replay_order.current_pass()
            if around is not None:
                upstream = tuple(around.wait(self._number, self._made, upstream, first.backlog))
                unasked = first.doubtful.union(i for i in first.sources if not around.asks_for(first.inputs[i]))
                first = dataclasses.replace(first, doubtful=unasked, awaited=around.awaited)
            if self._host is not None:
                first = dataclasses.replace(first, inputs=self._host.taken(upstream))
            recording = graph_building.recorded() if tf.executing_eagerly() else contextlib.nullcontext(False)
            with recording as were_stopped:
                first = self._with_known_reads(first)
                gradients, again = xla_gradients.without_scatters(lambda: recomputation.backward(first, upstream))
                arguments = recomputation.arguments_among(first)
                doubtful = [i for i, source in enumerate(first.sources) if source in first.doubtful]
                gradients = xla_gradients.all_at_once(gradients, arguments, doubtful)
            if were_stopped:  # Copies, since tapes around were to record nothing.
                gradients = [g if g is None else tf.identity(g) for g in gradients]
            if around is not None:
                effects = recomputation.effects
                handles = [variable.handle for variable in effects.variables]
                given = [*(first.inputs[i] for i in first.sources), *effects.captured, *handles]
                around.done(given, arguments, gradients)
            if not self._checksums:
                return gradients
            layers = [layer for layer, _ in first.run.labels]
            return replay_checksums.raise_if_different(self._name, layers, self._checksums, again, gradients)

    def _with_known_reads(self, first: FirstRun) -> FirstRun:
        """With values of variables that the tapes know of which saw them read, so that gradients may have gradients."""
        if self._reads is None:
            return first
        inputs = list(first.inputs)
        for i, value in zip(self._read, self._reads.values([inputs[i] for i in self._read])):
            inputs[i] = value
        return dataclasses.replace(first, inputs=inputs)


def _held_by(owner: keras.Layer, recomputation: TwoRuns) -> weakref.ref:
    """Let a layer hold a recomputation of the graph being built, for as long as that graph lives."""
    # The graph itself must not: TensorFlow keeps each graph in which an optimizer of Keras applies gradients, in the
    # gradients that it registers for their sum over replicas, and a recomputation leads to the model.
    traces = owner.__dict__.setdefault(TRACES, weakref.WeakKeyDictionary())
    traces.setdefault(tf.compat.v1.get_default_graph(), []).append(recomputation)
    return weakref.ref(recomputation)
