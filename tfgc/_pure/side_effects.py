"""Find out what a function touches besides its arguments, by tracing it once.

Nothing is run: the trace tells which variables are read, what is closed over, and
whether some operation would give another result or effect when run again.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tfgc._framework import graph_building, private_api
from tfgc._pure import inner_functions, python_random, random_draws
from tfgc._pure.functional import Scope
from tfgc._pure.tensor_packing import Packing

# Stateful by TensorFlow's declaration, yet running them twice is harmless.
_REPEATABLE = frozenset(
    [
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarHandleOp",
        "VariableShape",
        "VarIsInitializedOp",
        "Placeholder",
        "StatefulPartitionedCall",
        "If",
        "While",
        "Case",
        "For",
        "Assert",
        "PrintV2",
        "StringFormat",
        "LookupTableSizeV2",
        "HashTableV2",
        "LookupTableFindV2",
        "Empty",
        "CheckNumerics",
        "CheckNumericsV2",
        "CudnnRNN",
        "CudnnRNNV2",
        "CudnnRNNV3",
    ]
)


@dataclasses.dataclass(frozen=True)
class Effects:
    """What a function touches besides its arguments.

    Attributes:
        reads: Keras variables it reads; their values become arguments.
        writes: Keras variables it writes.
        captured: Tensors it closes over through which gradients can flow.
        variables: Plain `tf.Variable`s it reads, the trainable ones.
        constants: Whether it reads eager tensors that a trace takes over as constants.
        unread: Slots of its arguments, such as masks, that hang on tensors and are not looked at.
        draws: Whether it draws random numbers from hidden state, to be stored for a second run.
        chooses: Whether it draws from Python's or NumPy's global stream, as each call then does anew.
        obstacle: Why it must not be run twice, or None.
    """

    reads: tuple
    writes: tuple = ()
    captured: tuple = ()
    variables: tuple = ()
    constants: bool = False
    unread: frozenset = frozenset()
    draws: bool = False
    chooses: bool = False
    obstacle: Any = None


def discover(fn, packing):
    """Trace `fn` once, symbolically, and return its `Effects`.

    Layers not built yet are built by this, as by their first call.
    """
    scope, unread = None, frozenset()
    found = packing.unsupported
    taken = []

    def traced(*tensors):
        nonlocal scope, found, unread
        args, kwargs = packing.unpack(tensors)
        inlined = inner_functions.inlined(lambda *call: scope.apart(*call))
        with Scope(None) as scope, inlined, graph_building.spy_on_captures(taken):
            result = Packing(fn(*args, **kwargs), made=True)
        unread = packing.unread(tensors, result.tensors)
        here = tf.compat.v1.get_default_graph()
        made = [*((v.path, value) for v, value in scope.written.values()), *(("a loss", x) for x in scope.losses)]
        inner = [name for name, value in made if value.graph is not here]
        if inner:
            found = f"{inner[0]} is set inside of tf.cond or tf.while_loop. Set it outside of the branch"
        found = found or result.unsupported
        return result.tensors

    before, start = private_api.call_context(), python_random.state()
    try:
        graph = tf.function(traced, autograph=False).get_concrete_function(*packing.specs).graph
    finally:
        private_api.set_call_context(before)
        chooses = python_random.state() != start
        if chooses:
            python_random.rewind(start)
    return Effects(
        reads=tuple(scope.reads.values()),
        writes=tuple(variable for variable, _ in scope.written.values()),
        captured=tuple(t for t in graph.external_captures if t.dtype.is_floating or t.dtype.is_complex),
        variables=tuple(graph.variables),
        constants=any(tensor.dtype != tf.resource for tensor in taken),
        unread=unread,
        draws=any(op.type in random_draws.TYPES for op in graph.get_operations()),
        chooses=chooses,
        obstacle=found or obstacle(graph),
    )


def symbolic(fn, tape):
    """Run `fn` in the graph being built, a placeholder for each variable that it reads.

    Returns:
        The result, the losses that were added, all placeholders, and those of
        trainable variables, which `tape` watches.
    """
    standing, trainable = [], []
    here = tf.compat.v1.get_default_graph()

    def stand_in(variable):
        stored = private_api.storage(variable)
        # A branch must not hold what the other one reads too.
        with here.as_default():
            standing.append(tf.compat.v1.placeholder(stored.dtype, stored.shape))
        if variable.trainable:
            trainable.append(standing[-1])
            tape.watch(standing[-1])
        return standing[-1]

    with Scope(None, stand_in) as scope, inner_functions.inlined():
        result = fn()
    return result, list(scope.losses), standing, trainable


def obstacle(graph, share=random_draws.SHARE):
    """Name the first op that gives another result or effect when run again.

    What random operations draw can be stored, if that is no more than a share of what the graph computes.
    """
    for op in graph.get_operations():
        if op.op_def.is_stateful and op.type not in _REPEATABLE | random_draws.TYPES:
            return _remedy(op.type, op.name)
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            if node.op not in _REPEATABLE and private_api.is_stateful(node.op):
                return _remedy(node.op, node.name)
    large = random_draws.too_large(graph, share)
    return None if large is None else f"{_remedy(large.type, large.name)}: what it draws is too large to be stored"


def _remedy(op_type, name):
    return (
        f"{op_type} at {name!r}. Draw random numbers with keras.random and keep state in Keras variables "
        "(`self.add_weight`) to let tfgc recompute it"
    )
