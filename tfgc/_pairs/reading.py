"""The trace of a joint, read as data, and functions of some of its operations."""

import dataclasses
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import concrete_functions
from tfgc._pairs.joint import Joint
from tfgc._step.step import Step, Tensor
from tfgc._step.trace import Trace

# What a caller's loss holds at least, besides results and their gradients, as a multiple of a result: what is between
# them, such as probabilities or differences, and what its own gradient makes.
_LOSS = 2

# What runs operations on tensors.
Part = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


class Reading:
    """A trace of a joint.

    Attributes:
        trace: The trace.
        names: Of its arguments, and of what it captured.
        arguments: Their positions by operation.
        count: How many are arguments.
        upstream: Names of the upstream gradients.
        start: Where the operations of gradients start.
        helpers: Operations behind there that those before read: what loops of the function store for their gradients.
        results: The tensors that it returns: results of the function, then gradients.
    """

    def __init__(self, joint: Joint, trace: Trace) -> None:
        self._joint, self.trace = joint, trace
        self.names = [t.op.name for t in joint.function.graph.inputs]
        self.arguments = {trace.tensor(name)[0]: k for k, name in enumerate(self.names)}
        self.count = joint.count
        self.upstream = [t.op.name for t in joint.of(tuple(joint.through)).upstream]
        self.start = trace.tensor(self.upstream[0])[0] if self.upstream else len(trace.nodes)
        self._filters: dict[Tensor, list[int]] = defaultdict(list)  # gradients of filters by what they read
        self.results = [self._without_last_identity(trace.tensor(name)) for name in trace.results]
        self._captured = dict(zip(self.names[self.count :], joint.function.captured_inputs))
        for i, node in enumerate(trace.nodes):
            if node.op == "Conv2DBackpropFilter":
                self._filters[trace.read[i][0][2]].append(i)
        early = behind(range(self.start), lambda _: False, self._before)
        self.helpers = {i for i in early if i >= self.start}
        self._handles = {id(v.handle): v for v in joint.variables}

    def as_run(self, trace: Trace | None = None) -> Step:
        """The step of the trace or one like it, with results before the upstream gradients that a caller makes of them.

        Meanwhile its loss takes room. The caller holds results and upstream gradients until backward has run.
        """
        step, results = (trace or self.trace).step, self.results[: len(self._joint.made)]
        made = tuple(sorted({i for i, _ in results if i in step.ops}))
        upstream = [i for i, _ in map(self.trace.tensor, self.upstream) if i in step.ops]
        changed = {}
        for i in upstream:
            size = sum(step.ops[i].sizes)
            changed[i] = dataclasses.replace(
                step.ops[i], type="Upstream", controls=made, sizes=(size, _LOSS * size), call=len(step.calls),
                is_gradient=True,
            )  # fmt: skip
        kept = ((i, 0) for i in upstream)
        return dataclasses.replace(step, ops={**step.ops, **changed}, results=(*step.results, *kept))

    def behind(self, wanted: Iterable[Tensor], is_cut: Callable[[int], bool]) -> tuple[set[int], set[Tensor]]:
        """The operations behind some tensors, up to what is cut off; and the tensors there."""
        wanted = list(wanted)
        nodes = behind((i for i, _ in wanted), is_cut, self._before)
        read = {t for i in nodes for t in self.trace.read[i][0]}
        return nodes, {t for t in (*wanted, *read) if is_cut(t[0])}

    def _before(self, number: int) -> list[int]:
        read, controls = self.trace.read[number]
        found = [*(t[0] for t in read), *controls]
        if self.trace.nodes[number].op == "BiasAddGrad":  # with which oneDNN joins them, read or not (`_run.unread`)
            found += self._filters.get(read[0], ())
        return found

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

    def spec(self, tensor: Tensor) -> Any:
        """The shape and type of a tensor."""
        made = self.trace.ops[tensor[0]].outputs[tensor[1]]
        return tf.TensorSpec(made.shape, made.dtype)

    def part(self, nodes: Iterable[Any], wanted: Sequence[str], given: Mapping[str, Any], *, stays: bool) -> Part:
        """A function of operations.

        Args:
            nodes: The operations.
            wanted: Names of what it returns.
            given: The specs of what it takes, by name.
            stays: Whether its calls stay calls.
        """
        definition = tf.compat.v1.GraphDef()
        definition.versions.CopyFrom(self.trace.definition.versions)
        definition.library.CopyFrom(self.trace.definition.library)
        definition.node.extend(nodes)
        names = {node.name for node in definition.node}
        for node in definition.node:
            if node.attr.get(_GRADIENT, _NONE).s.startswith(b"tfgc-replay"):  # of a pair in this one, as it was called
                del node.attr[_GRADIENT]
            node.input[:] = [name for name in node.input if name[0] != "^" or name[1:] in names]
        used = {name for node in definition.node for name in node.input}
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
            return [known[name] for name in wanted]

        function = tf.function(build, autograph=False, experimental_attributes={"_noinline": stays})
        called = [concrete_functions.known(function.get_concrete_function(*given.values())), *self.trace.registered]

        def run(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            if not tf.executing_eagerly():  # What the graph calls lives as long as it does.
                weakref.finalize(tf.compat.v1.get_default_graph(), len, called)
            return concrete_functions.call_flat(called[0], list(tensors))

        return run

    def _without_last_identity(self, tensor: Tensor) -> Tensor:
        """A result behind the identity that ends a traced function."""
        while self.trace.nodes[tensor[0]].op == "Identity" and tensor[0] >= self.start:
            tensor = self.trace.behind_gathered(self.trace.read[tensor[0]][0][0])
        return tensor


def behind(wanted: Iterable[int], is_cut: Callable[[int], bool], before: Callable[[int], Iterable[int]]) -> set[int]:
    """The operations behind some, up to those that are cut off; `before` says which one waits for."""
    found, waiting = set[int](), [i for i in wanted if not is_cut(i)]
    while waiting:
        i = waiting.pop()
        if i not in found:
            found.add(i)
            waiting += [j for j in before(i) if not is_cut(j)]
    return found


_GRADIENT, _NONE = "_gradient_op_type", tf.compat.v1.AttrValue()
