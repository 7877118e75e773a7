"""Run a step symbolically and note which calls, at any depth, made which operations, and which are gradients."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfgc._calls.step import Call
from tfgc._costs import slot_bytes, xla_functions
from tfgc._costs.xla_functions import Temporary
from tfgc._framework import graph_building, isolated_traces, keras_models, private_api
from tfgc._framework.layer_values import leaves
from tfgc._pure import inner_functions


@dataclasses.dataclass(frozen=True)
class WeightUpdate:
    """An update that the step would make."""

    behind: int  # how many operations there were before
    variable: int  # the id of its handle; in a `Trace` of what stands for that
    gradient: tf.Tensor  # or one tensor of a sparse one
    weight_bytes: int
    is_sparse: bool


@dataclasses.dataclass(frozen=True)
class Trace:
    """The graph of a training step."""

    graph: Any  # Nothing in it is ever run.
    root: Call  # stands for the step itself, around all others
    gradients: list[tuple[int, int]]  # ranges of operations (first, behind the last) that tapes made
    custom_gradients: list[tuple[int, int, Call]]  # those among them of a `tf.custom_gradient`, with its call
    wanted: list[tf.Tensor]  # the gradients that the step asks for
    results: list[tf.Tensor]  # what else it returns
    batch: list[tf.Tensor]  # what stands for the batch
    owned: frozenset[int]  # stand-ins of the Keras variables, by id: a replay handles what is written to these
    # Those that XLA compiles: how many operations there were, and what XLA takes.
    functions: list[tuple[int, Temporary]]
    updates: list[WeightUpdate]


def record(model: keras.Model, step: Callable[[], tuple[Any, list]], *, xla: bool) -> Trace:
    graph = graph_building.scratch_graph("step")
    recorder = _Recorder(graph)
    seen = isolated_traces.watched(graph, recorder.call, recorder.custom_gradient, recorder.gradient, recorder.update)
    apart = None if xla else xla_functions.measured(recorder.function)
    with graph.as_default(), inner_functions.inlined(apart), seen:
        made, batch = step()
    recorder.root.last = len(graph.get_operations())
    handles = {id(handle) for variable in variables(model) for handle in private_api.handles(variable)}
    stand_ins = {id(outer): id(inner) for outer, inner in graph.captures}
    updates = [update for update in recorder.updates if update.variable in stand_ins]
    return Trace(
        graph=graph,
        root=recorder.root,
        gradients=recorder.gradients,
        custom_gradients=recorder.custom_gradients,
        wanted=recorder.wanted,
        results=[t for t in _tensors(made) if t.graph is graph],
        batch=[t for t in batch if t is not None],
        owned=frozenset(inner for outer, inner in stand_ins.items() if outer in handles),
        functions=recorder.functions,
        updates=[dataclasses.replace(update, variable=stand_ins[update.variable]) for update in updates],
    )


class _Recorder:
    """Notes calls and gradients while a step is traced."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.root = Call(None, None, 0)
        self._stack = [self.root]
        self.gradients: list[tuple[int, int]] = []
        self.custom_gradients: list[tuple[int, int, Call]] = []
        self.wanted: list[tf.Tensor] = []
        self.functions: list[tuple[int, Temporary]] = []
        self.updates: list[WeightUpdate] = []

    def _count(self) -> int:
        return len(self._graph.get_operations())

    def function(self, temporary: Temporary) -> None:
        """Note a function that XLA compiles; its body comes next."""
        self.functions.append((self._count(), temporary))

    def call(self, operation: Any, run: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a call, as one inside of the call that runs now."""
        layer = isinstance(operation, keras.Layer)
        scope = self._graph.get_name_scope() if layer else None
        training = kwargs.get("training", (private_api.call_context() or {}).get("training"))
        given = [*args, *(value for name, value in kwargs.items() if name != "mask")]  # Keras gives masks by keyword
        shapes = tuple(tuple(t.shape) for t in _tensors(given) if t.shape.rank is not None)
        call = Call(operation, self._stack[-1], self._count(), scope=scope, training=training, inputs=shapes)
        self._stack[-1].children.append(call)
        self._stack.append(call)
        try:
            return run(*args, **kwargs)
        finally:
            self._stack.pop()
            call.last = self._count()

    def custom_gradient(self, backward: Callable) -> Callable:
        """Note the operations that a gradient function makes, as those of the call that runs now."""
        call = self._stack[-1]

        def noted(*upstream: Any) -> Any:
            first = self._count()
            found = backward(*upstream)
            self.custom_gradients.append((first, self._count(), call))
            return found

        return noted

    def gradient(self, run: Callable) -> Any:
        """Make gradients."""
        first = self._count()
        found = run()
        self.gradients.append((first, self._count()))
        self.wanted += _tensors(found)
        return found

    def update(self, optimizer: Any, grads: Sequence[Any], trainable_variables: Any = None, **_: Any) -> None:
        """Note what an update of variables needs, instead of making it."""
        for gradient, variable in zip(grads, private_api.updated_by(optimizer, trainable_variables)):
            handles = private_api.handles(variable) if isinstance(variable, keras.Variable) else []
            about = slot_bytes.variable_bytes([variable]) if handles else 0, not isinstance(gradient, tf.Tensor)
            for handle, tensor in itertools.product(handles, _tensors(gradient)):
                self.updates.append(WeightUpdate(self._count(), id(handle), tensor, *about))


def _tensors(structure: Any) -> list[tf.Tensor]:
    return [t for t in tf.nest.flatten(structure, expand_composites=True) if tf.is_symbolic_tensor(t)]


def variables(model: keras.Model) -> Iterator[keras.Variable]:
    """Every Keras variable that the layers hold, in a list of Keras's or not, and the global seed."""
    yield from model.variables
    seed = private_api.global_seed()
    if seed is not None:
        yield seed.state
    for layer in keras_models.layers_inside(model):
        yield from (value for value in leaves(vars(layer)) if isinstance(value, keras.Variable))
        yield from layer.metrics_variables
