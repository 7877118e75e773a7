"""The two directions of a `Joint` as functions of TensorFlow: operations of its trace, imported.

Forward runs all that is stateful, and returns what that made as far as gradients read it. So backward is pure: it makes
the rest again from the arguments, and gives the same bits. A tape may record it.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import concrete_functions, isolated_traces
from tfgc._pairs.joint import Joint
from tfgc._step.step import Tensor
from tfgc._step.trace import Trace

# What runs one direction.
Part = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


class Directions:
    """Forward and backward of one joint trace.

    Attributes:
        read: The positions of the arguments that backward reads.
        stateful: Names of what forward makes besides results, as far as backward reads it.
        variables: For each of these the variable that it was read from, or None.
    """

    forward_stays = False  # a call, as backward does

    def __init__(self, joint: Joint) -> None:
        self.joint, self._parts = joint, dict[Any, Part]()
        self._first = first = isolated_traces.in_own_thread(lambda: _Reading(joint, joint.trace(every=False)))
        _, given = first.behind(first.results[len(joint.made) :], first.is_given)
        arguments = [first.arguments.get(i, joint.count) for i, _ in given]
        self.read = tuple(sorted(k for k in arguments if k < joint.count))
        stateful = sorted(t for t in given if t[0] < first.start and t[0] not in first.arguments)
        self.stateful = list(map(first.name, stateful))
        self.variables = list(map(first.variable, stateful))

    def forward(self, recorded: bool) -> Part:
        """What makes the results of the arguments, and if it is recorded what is stateful."""
        if recorded not in self._parts:
            self._parts[recorded] = isolated_traces.in_own_thread(lambda: self._forward(recorded))
        return self._parts[recorded]

    def _forward(self, recorded: bool) -> Part:
        first, joint = self._first, self.joint
        results = first.results[: len(joint.made)]
        results += map(first.trace.tensor, self.stateful if recorded else ())
        effects = [(i, 0) for i in range(first.start) if first.trace.is_stateful(i)]
        nodes, _ = first.behind([*results, *effects], first.arguments.__contains__)
        return first.part(nodes, results, first.names[: joint.count], self.forward_stays)

    def backward(self, through: tuple[int, ...], recorded: bool) -> Part:
        """What makes the gradients of all sources, as tensors that they consist of.

        It takes the arguments that are `read`, what is `stateful`, and the gradients of those of the results. Where a
        tape records it, what is called in it is part of it: TensorFlow has no gradient of calls that are imported.
        """
        key = through, recorded
        if key not in self._parts:
            self._parts[key] = isolated_traces.in_own_thread(lambda: self._backward(through, recorded))
        return self._parts[key]

    def _backward(self, through: tuple[int, ...], recorded: bool) -> Part:
        found, start = self.joint.flat(through)
        reading = _Reading(self.joint, self.joint.trace(every=recorded))
        wanted = reading.results[start : start + len(found.flat)]
        nodes, _ = reading.behind(wanted, reading.is_given)
        given = [*(reading.names[k] for k in self.read), *self.stateful, *(t.op.name for t in found.upstream)]
        # As a call that stays a call it is not merged with the forward pass that it makes again.
        return reading.part(nodes, wanted, given, stays=True)

    def parts_of(self, through: tuple[int, ...]) -> list[int]:
        """Of how many tensors each gradient consists: one, three if it is sparse, none if there is none."""
        return self.joint.of(through).parts


class _Reading:
    """A trace of a joint: `arguments` are positions by operation, gradients `start` at an operation."""

    def __init__(self, joint: Joint, trace: Trace) -> None:
        self.trace = trace
        self.names = [t.op.name for t in joint.function.graph.inputs]
        self.arguments = {trace.tensor(name)[0]: k for k, name in enumerate(self.names)}
        upstream = joint.of(tuple(joint.through)).upstream
        self.start = trace.tensor(upstream[0].op.name)[0] if upstream else len(trace.nodes)
        self.results = [self._without_last_identity(trace.tensor(name)) for name in trace.results]
        self._captured = dict(zip(self.names[joint.count :], joint.function.captured_inputs))
        self._filters: dict[Tensor, list[Tensor]] = defaultdict(list)  # gradients of filters by what they read
        for i, node in enumerate(trace.nodes):
            if node.op == "Conv2DBackpropFilter":
                self._filters[trace.read[i][0][2]].append((i, 0))
        self._handles = {id(v.handle): v for v in joint.variables}

    def behind(self, wanted: Iterable[Tensor], is_cut: Callable[[int], bool]) -> tuple[set[int], set[Tensor]]:
        """The operations behind some tensors, up to what is cut off; and the tensors there."""
        nodes, given, waiting = set[int](), set[Tensor](), list(wanted)
        while waiting:
            tensor = waiting.pop()
            i = tensor[0]
            if is_cut(i):
                given.add(tensor)
            elif i not in nodes:
                nodes.add(i)
                read, controls = self.trace.read[i]
                if self.trace.nodes[i].op == "BiasAddGrad":  # with which oneDNN joins them, read or not (`_run.unread`)
                    waiting += self._filters.get(read[0], ())
                # Backward needs no effect of the forward pass: what that changed, it is given.
                waiting += [*read, *((j, 0) for j in controls if not is_cut(j))]
        return nodes, given

    def is_given(self, number: int) -> bool:
        """Whether backward is given what an operation makes."""
        if self.trace.nodes[number].op == "Placeholder":
            return True
        return number < self.start and self.trace.is_stateful(number)

    def variable(self, tensor: Tensor) -> Any:
        """The variable that a tensor was read from, or None."""
        node = self.trace.nodes[tensor[0]]
        return self._handles.get(id(self._captured.get(node.input[0]))) if node.op == "ReadVariableOp" else None

    def name(self, tensor: Tensor) -> str:
        """The name of a tensor, as operations read it."""
        name = self.trace.nodes[tensor[0]].name
        return f"{name}:{tensor[1]}" if tensor[1] else name

    def part(self, nodes: set[int], results: Sequence[Tensor], given: Sequence[str], stays: bool) -> Part:
        """A function of what is `given` by name, of these operations, whose calls stay calls or not."""
        trace = self.trace
        names = {trace.nodes[i].name for i in nodes}
        definition = tf.compat.v1.GraphDef()
        definition.versions.CopyFrom(trace.definition.versions)
        definition.library.CopyFrom(trace.definition.library)
        for i in sorted(nodes):
            node = definition.node.add()
            node.CopyFrom(trace.nodes[i])
            if node.attr.get(_GRADIENT, _NONE).s.startswith(b"tfgc-replay"):  # of a pair in this one, as it was called
                del node.attr[_GRADIENT]
            node.input[:] = [name for name in node.input if name[0] != "^" or name[1:] in names]
        used = {name for node in definition.node for name in node.input}
        wanted = list(map(self.name, results))
        captured = {name: t for name, t in self._captured.items() if name in used or name in wanted}

        def build(*tensors: tf.Tensor) -> list[tf.Tensor]:
            here: Any = tf.compat.v1.get_default_graph()
            known = dict(zip(given, tensors)) | {name: here.capture(t) for name, t in captured.items()}
            own = [name for name in wanted if name not in known]
            made = tf.graph_util.import_graph_def(
                definition,
                input_map={name: t for name, t in known.items() if name in used},
                return_elements=[name if ":" in name else f"{name}:0" for name in own],
                name="",
            )
            known |= zip(own, made)
            return [tf.identity(known[name]) for name in wanted]

        specs = [self._spec(trace.tensor(name)) for name in given]
        function = tf.function(build, autograph=False, experimental_attributes={"_noinline": stays})
        called = [concrete_functions.known(function.get_concrete_function(*specs)), *trace.registered]

        def run(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            if not tf.executing_eagerly():  # What the graph calls lives as long as it does.
                weakref.finalize(tf.compat.v1.get_default_graph(), len, called)
            return concrete_functions.call_flat(called[0], list(tensors))

        return run

    def _without_last_identity(self, tensor: Tensor) -> Tensor:
        """A result behind the identity that ends a traced function."""
        while self.trace.nodes[tensor[0]].op == "Identity" and tensor[0] >= self.start:
            tensor = self.trace.read[tensor[0]][0][0]
        return tensor

    def _spec(self, tensor: Tensor) -> Any:
        made = self.trace.ops[tensor[0]].outputs[tensor[1]]
        return tf.TensorSpec(made.shape, made.dtype)


_GRADIENT, _NONE = "_gradient_op_type", tf.compat.v1.AttrValue()
