"""What the losses of a model's outputs, and its metrics, need beside the outputs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfgc._core.graph import Graph, Ref, Spec
from tfgc._core.tensors import peak_of
from tfgc._costs import gradient_graphs, metric_bytes, tensor_buffers
from tfgc._costs.call_operations import Call, classified
from tfgc._costs.tensor_buffers import tensor_bytes
from tfgc._error_texts import one_line
from tfgc._errors import UnsupportedModelError
from tfgc._framework import graph_building, keras_names, tensor_attributes
from tfgc._framework.memory_errors import OUT_OF_MEMORY


def courses(
    graph: Graph, model: keras.Model, losses: Sequence[Sequence[Any]], are_compiled: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Ref, ...]]:
    """The byte traces of losses, metrics and gradients of the losses, for `Graph.loss` and `Graph.eager_loss`.

    And the outputs that crossentropies of `compile` write over in graphs, since no metric reads them; a loop of the
    user's may hold them. Targets have the shape of their output, or are one integer in place of its last dimension.
    `losses` are names, functions and `keras.Loss` objects for each output; one that `compile` was given and that needs
    other targets is left out.
    """
    metrics = [] if graph.xla else list(metric_bytes.metrics(graph, model))
    beside = sum(metric_bytes.most_bytes(metric, graph.specs[ref]) for ref, metric in metrics)
    measured = {ref for ref, _ in metrics}
    written_over: list[Ref] = []

    def course(eager: bool) -> tuple[int, ...]:
        found: list[_Course] = []
        for ref, several in zip(graph.outputs, losses):
            output = _Output(graph.specs[ref], _logits_behind(graph, ref), graph.xla, eager, eager or ref in measured)
            of_one: list[_Course] = []
            for loss in several:
                known = keras_names.loss(loss)
                wraps = are_compiled and not isinstance(known, keras.Loss)
                of_one += _of_output(_Compiled(known) if wraps else known, output, are_compiled)
            found += of_one
            is_free = are_compiled and len(several) == 1 and not (output.xla or output.is_read)
            if is_free and any(course.writes_over_output for course in of_one):
                written_over.append(ref)
        counts = _together(found, all_stays=eager or graph.xla)
        return (beside, *counts, -beside) if beside else counts

    return course(eager=False), course(eager=True), tuple(written_over)


class _Course(NamedTuple):
    """Byte traces of one loss."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    beside: int  # bytes that are there during the backward pass, too
    size: int  # bytes of the output
    writes_over_output: bool


def _together(courses: Sequence[_Course], *, all_stays: bool) -> tuple[int, ...]:
    """The byte trace of several losses.

    The gradient does not wait for the value, so what the value alone needs may still be there. Two bounds hold, and the
    lower one counts: all of it is there; or all forward passes run before the first gradient, and, as measured, the
    temporary buffers of no more than two losses add up, on any number of outputs.
    """
    stays: tuple[int, ...] = ()
    for course in courses:
        alone = tuple(count for count in course.forward if count > 0)
        stays += alone + _while(_pieces(course.beside, course.size), course.backward)
    if all_stays:
        return stays
    freed = [(peak_of(c.forward) - sum(c.forward) + c.beside, c.size) for c in courses]
    second = sorted(((peak_of(c.backward), c.size) for c in courses), reverse=True)[1:2]
    late = [piece for most in sorted(freed, reverse=True)[:2] + second for piece in _pieces(*most)]
    backward = tuple(count for course in courses for count in course.backward)
    in_turn = (*(count for course in courses for count in course.forward), *_while(late, backward))
    return min(stays, in_turn, key=peak_of)


def _pieces(count: int, size: int) -> list[int]:
    """Bytes in buffers as large as an output."""
    whole, rest = divmod(count, size) if size else (0, count)
    return [size] * whole + [rest] * (rest > 0)


def _while(pieces: Sequence[int], byte_trace: tuple[int, ...]) -> tuple[int, ...]:
    """A byte trace during which some buffers are there."""
    return (*pieces, *byte_trace, *(-piece for piece in pieces))


class _Compiled(keras.Loss):
    """A function as `compile` takes it: behind outputs that have to be cast Keras finds no logits."""

    def __init__(self, function: Callable) -> None:
        super().__init__(name="loss")
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The values of the function."""
        return self.function(y_true, y_pred)


class _Output(NamedTuple):
    """An output of the model, and where its loss runs."""

    spec: Spec
    logits: str | None  # how Keras's crossentropies find the logits behind it
    xla: bool
    eager: bool
    is_read: bool  # whether it is there, too, where the loss reads its logits alone


def _logits_behind(graph: Graph, ref: Ref) -> str | None:
    """How Keras's crossentropies find the logits behind a tensor, as in `Cost.logits`."""
    while ref.node in graph.position:
        cost = graph.costs[graph.position[ref.node]]
        found = cost.logits[ref.index] if cost.logits else None
        view = cost.aliases[ref.index] if cost.aliases else None
        if found != "" or view is None:
            return found or None
        ref = view
    return None


def _of_output(loss: Callable, output: _Output, may_fail: bool) -> list[_Course]:
    spec = output.spec
    failed: Any = None
    for target in metric_bytes.targets(spec):
        try:
            return [_course_of(loss, output, target)]
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # The loss may be the user's code.
            failed = failed or error
    if may_fail:
        return []
    raise UnsupportedModelError(
        f"loss={loss!r} cannot be computed from an output of shape {spec.shape} and targets of that shape, or one "
        f"integer in place of its last dimension ({one_line(failed)}). Compile the model with it, or leave loss out: "
        "what it needs is then not counted"
    ) from failed


def _course_of(loss: Any, output: _Output, target: tuple) -> _Course:
    # An operation that Keras could look at is there in graphs alone.
    is_hidden = output.eager and output.logits in tensor_attributes.ACTIVATIONS
    call = None if is_hidden or output.logits is None else _traced(loss, output, target, output.logits)
    # The output then stands for its logits.
    more = tensor_bytes(call.inputs[0]) if call and output.is_read else 0
    call = call or _traced(loss, output, target)
    assert call is not None
    cost = gradient_graphs.footprint(call, xla=output.xla).cost
    # What the value still reads is not overwritten by the gradient.
    beside = more + (0 if output.xla else gradient_graphs.shared_bytes(call))
    operations = classified(call)
    over = tensor_buffers.writes_gradient_over(call.inputs[0], {*operations.early, *operations.late})
    return _Course(cost.forward_saving_trace, cost.backward_trace, beside, tensor_bytes(call.inputs[0]), over)


def _traced(loss: Any, output: _Output, target: tuple, found_by: str | None = None) -> Call | None:
    """A loss with its gradient; None if it does not read the logits alone that Keras would find in this way."""
    spec = output.spec
    with graph_building.scratch_graph("loss").as_default() as graph:
        logits = tf.compat.v1.placeholder(spec.dtype, spec.shape)
        predicted = tensor_attributes.with_logits(logits, found_by) if found_by else logits
        given = tf.compat.v1.placeholder(*target)
        with tf.GradientTape() as tape:
            # Operation by operation, gradients of targets are computed, too.
            sources = [logits, given] if output.eager and given.dtype.is_floating else [logits]
            tape.watch(sources)
            value = tf.reduce_mean(loss(given, predicted))
        if predicted is not logits and predicted.consumers():
            return None
        upstream = tf.compat.v1.placeholder(value.dtype, value.shape)
        gradients = tape.gradient(value, sources, output_gradients=upstream)
    return Call(graph, [logits, given], [], [value], [upstream], gradients, sources)
