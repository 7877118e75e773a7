"""Have the gradient of a variable as soon as it is complete, and not when all gradients are.

A tape adds up what all reads of a variable contribute to its gradient: in several layers, in losses, in replays. It
passes on the sum once the last of them is differentiated, if the variable was made by an operation that the tape
knows. So the tape is given such an operation, whose result is the variable's handle:

    anchor -- (taken) --> handle -- (read) --> value --> layers --> loss

Its gradient function takes the sum, and passes on nothing. By then nothing that the tape still has to differentiate
reads the variable.

A tape differentiates first what was ready first. Between the gradients of a segment and `take` are two operations, read
and taken, so that two more segments would be differentiated in between, and hold their gradients, too. So what segments
hand to one another goes through two operations, too (`later`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfgc._framework import backward_order, private_api
from tfgc._framework.internals import record


def watch(tape: tf.GradientTape, variables: Sequence[Any], take: Callable[[int, Any], None]) -> list[Any]:
    """Let `take(i, gradient)` have the gradient of each variable that has one while `tape` differentiates.

    The tape is recording, and is not to watch accessed variables. Returns what to ask it for the gradients of; these
    are none, or of no use.
    """
    anchor = tf.zeros(())
    tape.watch(anchor)
    handles = [private_api.storage(variable).handle for variable in variables]
    for i, handle in enumerate(handles):
        record.record_operation("taken", [handle], [anchor], lambda gradient, i=i: [take(i, gradient)])
    # In a graph, `replay_order` reads what is asked for. An eager tape would keep those gradients.
    return [anchor] if tf.executing_eagerly() else [anchor, *(private_api.storage(v) for v in variables)]


def later(tensor: Any) -> Any:
    """A copy of a segment's result, whose gradient the tape passes on after it has handed over what is complete."""
    for _ in range(2):
        tensor = backward_order.passed(tensor, lambda upstream: upstream, [])
    return tensor
