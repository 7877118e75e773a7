"""How long each node takes in a training step, beside all others.

Plain training is traced with a tape for each node, so that every operation is known to be of the forward or backward
pass of one node, whatever its name. The step runs a few times under TensorFlow's profiler. Operations that run at the
same time share it, so that all of them together take as long as the step.
"""

import itertools
import statistics
import time
from typing import Any, NamedTuple, cast

import tensorflow as tf

from tfgc._core.graph import Graph, Ref, Spec
from tfgc._costs import call_operations
from tfgc._framework import operation_hooks, profiler
from tfgc._pure import functional, side_effects, taken_results, tensor_packing
from tfgc._tracing.keras_graph import Program

_STEPS = 5
_ENOUGH_SECONDS = 20.0


class NodeSeconds(NamedTuple):
    """Seconds of a node."""

    forward: float
    backward: float
    selective: float  # forward, in a replay that takes over dear products


def measured(program: Program, graph: Graph) -> list[NodeSeconds]:
    """The `NodeSeconds` of each node: medians of plain training steps on random inputs. No state changes."""
    step = _Step(program, graph)
    step.run()  # compiles, and fills the allocator's pools
    begun = time.perf_counter()
    step.run()
    steps = max(1, min(_STEPS, int(_ENOUGH_SECONDS / (time.perf_counter() - begun))))
    profiles = [step.charged(profiler.shared(profiler.operations_run(step.run))) for _ in range(steps)]
    return [NodeSeconds(*map(statistics.median, zip(*node))) for node in zip(*profiles)]


class _Charge(NamedTuple):
    """What the time of an operation counts as."""

    position: int
    backward: bool
    selective: bool


class _Step:
    """A training step whose operations are known by node."""

    def __init__(self, program: Program, graph: Graph) -> None:
        self._program, self._graph = program, graph
        sparse = {t.name for t in program.function.inputs if t.sparse}
        inputs = tuple(_filled(spec, name in sparse) for name, spec in graph.inputs.items())
        self._packing = tensor_packing.Packing((inputs, {}))
        tensors = self._packing.take_tensors()
        self._weights: dict[int, tf.Tensor] = {}  # the values of trainable variables, by their ids
        self._table: dict[Ref, Any] = {}
        # Of each node's forward pass, as it was traced: its operations, their tape, and what gradients are taken of.
        self._passes: list[tuple[list[tf.Operation], tf.GradientTape, list[Any]]] = []
        self._variables = side_effects.discover(self._forward, self._packing).reads
        self._arguments = tensors, [tf.convert_to_tensor(variable.value) for variable in self._variables]
        self._charges: dict[str, _Charge] = {}
        self._function = tf.function(self._trace, autograph=False)

    def run(self) -> None:
        """Run one step."""
        self._function(*self._arguments)
        tf.test.experimental.sync_devices()

    def charged(self, seconds: dict[str, float]) -> list[NodeSeconds]:
        """Seconds by operation as those of nodes."""
        totals = [[0.0, 0.0, 0.0] for _ in self._graph.nodes]
        for operation, count in seconds.items():
            # One that is not in the traced graph is inside of one that is (a loop, a call of a function), or stands for
            # others of its scope (TensorFlow's optimizer made it).
            name = operation
            while name and name not in self._charges:
                name = name.rpartition("/")[0]
            if name in self._charges:
                position, backward, selective = self._charges[name]
                totals[position][backward] += count
                totals[position][2] += count * selective
        return [NodeSeconds(*total) for total in totals]

    def _trace(self, inputs: list[tf.Tensor], values: list[tf.Tensor]) -> list[Any]:
        self._weights = {id(v): value for v, value in zip(self._variables, values) if v.trainable}
        functional.run(self._forward, self._packing, inputs, self._variables, values)
        gradients, backward = self._backward()
        self._note(backward, inputs, values)
        return gradients

    def _forward(self, *tensors: Any) -> list[Any]:
        """The outputs; notes every tensor, and the forward pass of each node."""
        self._table = table = dict(zip(map(Ref, self._graph.inputs), tensors))
        self._passes = []
        for node in self._graph.nodes:
            layer, _, _ = self._program.call_of(node.name)
            sources = [table[ref] for ref in self._graph.cost(node).differentiable_inputs]
            own = (id(variable) for variable in getattr(layer, "trainable_variables", ()))
            sources += [self._weights[variable] for variable in own if variable in self._weights]
            with operation_hooks.noted() as made, tf.GradientTape() as tape:
                tape.watch(sources)
                self._program.run([node.name], table, training=True)
            self._passes.append((made, tape, sources))
        return [table[ref] for ref in self._graph.outputs]

    def _backward(self) -> tuple[list[Any], list[list[tf.Operation]]]:
        """The gradients of the weights, and the operations of each node's backward pass."""
        graph, table, weights, passes = self._graph, self._table, [], []
        upstream = {ref: [tf.ones_like(table[ref])] for ref in graph.outputs if graph.floating(ref)}
        for node, (_, tape, sources) in zip(reversed(graph.nodes), reversed(self._passes)):
            refs = [ref for ref in node.made if ref in upstream]
            flowing = graph.cost(node).differentiable_inputs
            found: list[Any] = []
            with operation_hooks.noted() as made:
                if refs:
                    sums = [tf.add_n(upstream[ref]) for ref in refs]
                    found = tape.gradient([table[ref] for ref in refs], sources, output_gradients=sums)
                for ref, gradient in zip(flowing, found):
                    if gradient is not None:
                        upstream.setdefault(ref, []).append(tf.convert_to_tensor(gradient))
            weights += [gradient for gradient in found[len(flowing) :] if gradient is not None]
            passes.append(made)
        return weights, passes[::-1]

    def _note(self, backward: list[list[tf.Operation]], inputs: list[tf.Tensor], values: list[tf.Tensor]) -> None:
        """Note what each operation's time counts as."""
        given, made = [*inputs, *values], list(self._table.values())
        forward = [operations for operations, _, _ in self._passes]
        early, late = (list(itertools.chain.from_iterable(operations)) for operations in (forward, backward))
        tensors = [t for t in tf.nest.flatten(made, expand_composites=True) if t.op not in {x.op for x in given}]
        read = {t.ref(): t for op in late for t in op.inputs}
        needed = [*tensors, *(t.deref() for t in read)]
        stored = {op for cost, node in zip(self._graph.costs, forward) if cost.selective_bytes for op in node}
        products = {t.op for t in taken_results.dear_products(early, inputs, tensors) if t.op in stored}
        light = call_operations.ancestors(needed, products) - products
        for position, (first, second) in enumerate(zip(forward, backward)):
            self._charges.update({op.name: _Charge(position, False, op in light or op not in stored) for op in first})
            self._charges.update({op.name: _Charge(position, True, False) for op in second})
        scopes: dict[str, set[_Charge]] = {}
        for name, charge in self._charges.items():
            scopes.setdefault(name.rpartition("/")[0], set()).add(charge)
        alike = {scope: charges.pop() for scope, charges in scopes.items() if len({c[:2] for c in charges}) == 1}
        self._charges = {**alike, **self._charges}


def _filled(spec: Spec, sparse: bool) -> Any:
    """A random input; a sparse one has all values that it may have."""
    if spec.dtype.startswith(("float", "bfloat")):
        made = tf.cast(tf.random.stateless_uniform(cast(Any, spec.shape), seed=(0, 1)), spec.dtype)
    else:
        made = tf.zeros(spec.shape, spec.dtype)
    return tf.sparse.from_dense(made) if sparse else made
