"""Find out what a function touches besides its arguments, by tracing it once.

Nothing is run: the trace shows which variables are read, what is closed over, and whether some operation would give
another result or have another effect when run again.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfgc._framework import diverted_calls, graph_building, private_api, tensor_attributes
from tfgc._pure import inner_functions, obstacles, python_random, random_draws
from tfgc._pure.functional import Scope, StandIn
from tfgc._pure.tensor_packing import Packing


@dataclasses.dataclass(frozen=True)
class Effects:
    """What a function touches besides its arguments."""

    reads: tuple[keras.Variable, ...]  # whose values become arguments
    writes: tuple[keras.Variable, ...] = ()
    captured: tuple[tf.Tensor, ...] = ()  # tensors it closes over through which gradients can flow
    variables: tuple[tf.Variable, ...] = ()  # plain ones that it reads
    constants: bool = False  # whether it reads eager tensors that a trace captures as constants
    unread: frozenset[int] = frozenset()  # slots of logits, attached to its arguments, that it does not use
    unmasked: tuple[int, ...] = ()  # positions of flat arguments that it takes the mask off, as Keras's attention does
    draws: bool = False  # whether it draws random numbers from hidden state, to be stored for a second run
    seeded: bool = False  # whether it draws random numbers at all
    chooses: bool = False  # whether it draws from Python's or NumPy's streams: each call may choose another path
    branches: bool = False  # whether some of what gradients flow to is read in some branches alone
    obstacle: str | None = None  # why it must not be run twice


def discover(fn: Callable, packing: Packing, *, is_second: bool = False) -> Effects:
    """Trace `fn` once, symbolically, and return its `Effects`. Layers not built yet are built by this.

    It is traced a second time if a stream of random numbers moved that another thread may have drawn from.
    """
    trace = Trace(fn, packing)
    traced = tf.function(lambda *tensors: trace.run(*tensors), autograph=False)
    before, start, generator = private_api.call_context(), python_random.state(), private_api.global_seed()
    chooses = True
    try:
        graph = traced.get_concrete_function(*packing.specs).graph
        private_api.set_call_context(before)
        is_seeded = generator is None and private_api.global_seed() is not None
        moved = python_random.state() != start
        chooses = moved and (is_second or is_seeded or not others_drew(fn, packing))
    finally:
        private_api.set_call_context(before)
        if chooses:
            python_random.rewind(start)
    if is_seeded:
        # Keras seeds it from Python's stream, once.
        private_api.make_global_seed()
        return discover(fn, packing)
    return trace.effects(
        captured=tuple(t for t in graph.external_captures if t.dtype.is_floating or t.dtype.is_complex),
        variables=tuple(graph.variables),
        draws=any(op.type in random_draws.TYPES for op in graph.get_operations()),
        seeded=random_draws.draws(graph.get_operations()),
        chooses=chooses,
        branches=bool(trace.scope.trained_in[True] - trace.scope.trained_in[False]) or obstacles.branches_differ(graph),
        obstacle=trace.obstacle or obstacles.obstacle(graph),
    )


def others_drew(fn: Callable, packing: Packing) -> bool:
    """Whether other threads moved Python's or NumPy's stream while `fn` was traced: another trace leaves both alone.

    What they drew must not be rewound, or they would draw it again. False where they go on drawing: nobody knows then.
    """
    return threading.active_count() > 1 and not discover(fn, packing, is_second=True).chooses


class Trace:
    """One symbolic run of a function, and what it shows besides the graph.

    `stand_in` gives what stands for a Keras variable when it is first read; by default nothing that can be run.
    `result` is what the function returned, `scope` what the run reads and writes; the others are as in `Effects`, but
    `captured` are all eager tensors that the graph captures.
    """

    def __init__(self, fn: Callable, packing: Packing, stand_in: StandIn | None = None) -> None:
        self._fn, self._packing, self._stand_in = fn, packing, stand_in
        self.scope = Scope(None, stand_in)
        self.result: Any = None
        self.captured: list[tf.Tensor] = []
        self.unread: frozenset[int] = frozenset()
        self.unmasked: tuple[int, ...] = ()
        self.obstacle = packing.unsupported

    def run(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Run the function on the symbolic tensors of the graph being built."""
        # TensorFlow does so once more if the function made variables; the last run counts.
        args, kwargs = given = self._packing.unpack(tensors)
        masked = tensor_attributes.masked(given)
        self.scope = Scope(None, self._stand_in)
        with self.scope, _seen(self.scope, self.scope.apart), graph_building.spy_on_captures(self.captured):
            self.result = self._fn(*args, **kwargs)
        result = Packing(self.result, made=True)
        self.unread = self._packing.unread(tensors, result.tensors)
        self.unmasked = tuple(sorted({*masked} - {*tensor_attributes.masked(given)}))
        self.obstacle = self.scope.obstacle or self._set_in_branch() or self.obstacle or result.unsupported
        return result.tensors

    def effects(self, **others: Any) -> Effects:
        """What the last run touched; `others` is what its graph shows."""
        return Effects(
            reads=tuple(self.scope.reads.values()),
            writes=tuple(variable for variable, _ in self.scope.written.values()),
            constants=any(tensor.dtype != tf.resource for tensor in self.captured),
            unread=self.unread,
            unmasked=self.unmasked,
            **others,
        )

    def _set_in_branch(self) -> str | None:
        here = tf.compat.v1.get_default_graph()
        made = [(variable.path, value) for variable, value in self.scope.written.values()]
        made += [("a loss", loss) for loss in self.scope.losses]
        inner = next((name for name, value in made if value.graph is not here), None)
        return inner and f"{inner} is set inside tf.cond or tf.while_loop. Set it outside the branch"


def symbolic(
    fn: Callable, tape: tf.GradientTape, apart: Callable | None = None
) -> tuple[Any, Scope, list[tf.Tensor], list[tf.Tensor]]:
    """Run `fn` in the graph being built, a placeholder for each variable that it reads.

    Returns the result, what was read, written and added as losses, all placeholders, and those of trainable variables,
    which `tape` watches. `apart` is as `inner_functions.inlined` takes it.
    """
    standing: list[tf.Tensor] = []
    trainable: list[tf.Tensor] = []
    here = tf.compat.v1.get_default_graph()

    def stand_in(variable: keras.Variable) -> tf.Tensor:
        standing.append(graph_building.placeholder_of(variable, here))
        if variable.trainable:
            trainable.append(standing[-1])
            tape.watch(standing[-1])
        return standing[-1]

    with python_random.streams_put_back(), Scope(None, stand_in) as scope, _seen(scope, apart):
        result = fn()
    return result, scope, standing, trainable


@contextlib.contextmanager
def _seen(scope: Scope, apart: Callable | None) -> Iterator[None]:
    """Let `scope` see into functions that are called, and what `tf.gradients` takes gradients of."""
    with inner_functions.inlined(apart), diverted_calls.graph_gradients_noted(scope.note_gradient):
        yield
