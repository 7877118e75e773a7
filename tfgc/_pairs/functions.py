"""The two directions of a `Joint` as functions of TensorFlow: operations of its trace, imported.

Forward runs all that is stateful, and returns what that made as far as gradients read it. So backward is pure: it makes
the rest again from the arguments, and gives the same bits. A tape may record it.

By a plan forward returns what that stores, too, and backward is a row of functions. It runs where all gradients come
from all results; otherwise the rest is made again from the arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tfgc._framework import own_replica
from tfgc._pairs import rows
from tfgc._pairs.joint import Joint
from tfgc._pairs.reading import Part, Reading
from tfgc._pairs.segments import Planned, Segments

# What plans a trace.
Plan: TypeAlias = Callable[[Reading], Planned]


class Directions:
    """Forward and backward of one joint trace.

    Args:
        joint: The trace.
        plan: The plan. Default: backward makes all again.

    Attributes:
        read: The positions of the arguments that backward reads.
        stateful: Names of what is stateful among what forward makes besides results, as far as backward reads it.
        variables: For each of these the variable that it was read from, or None.
        segments: What runs the plan, or None.
        kept: Names of all that forward makes besides results.
        planned: What the plan says of the step.
        is_as_traced: Whether that is the step as traced, in which nothing is recomputed.
    """

    forward_stays = False  # a call, as backward does

    def __init__(self, joint: Joint, plan: Plan | None = None) -> None:
        self.joint, self._known = joint, dict[Any, Any]()
        own_replica.in_own_thread(lambda: self._read(plan))

    def _read(self, plan: Plan | None) -> None:
        joint = self.joint
        self._first = first = Reading(joint, joint.trace(every=False))
        _, given = first.behind(first.results[len(joint.made) :], first.is_given)
        arguments = [first.arguments.get(i, joint.count) for i, _ in given]
        self.read = tuple(sorted(k for k in arguments if k < joint.count))
        stateful = sorted(t for t in given if t[0] < first.start and t[0] not in first.arguments)
        self.stateful = list(map(first.name, stateful))
        self.variables = list(map(first.variable, stateful))
        self.kept, self.segments, self.planned, self.is_as_traced = self.stateful, None, None, False
        if plan is not None and joint.through and joint.sources:
            planned = plan(first)
            self.is_as_traced = planned.step.order == first.trace.step.order  # TensorFlow orders it
            if not self.is_as_traced:
                planned = Planned(rows.with_poolings(planned.step, first.trace.ops), planned.said)
            self.planned, self.segments = planned.said, Segments(first, planned, len(joint.made))
            self.kept = [*self.stateful, *(name for name in self.segments.stored if name not in self.stateful)]

    @property
    def names(self) -> list[str]:
        """Of the arguments."""
        return self._first.names[: self.joint.count]

    @property
    def upstream(self) -> list[str]:
        """Names of the gradients that come to all results."""
        return self._first.upstream

    def forward(self, recorded: bool) -> Part:
        """What makes the results of the arguments, and if it is recorded what is kept."""
        return self._once(recorded, lambda: self._forward(recorded))

    def _forward(self, recorded: bool) -> Part:
        if recorded and self.segments is not None:
            return self.segments.forward(self.kept)
        first, joint = self._first, self.joint
        results = first.results[: len(joint.made)]
        results += map(first.trace.tensor, self.stateful if recorded else ())
        effects = [(i, 0) for i in range(first.start) if first.trace.is_stateful(i)]
        nodes, _ = first.behind([*results, *effects], first.arguments.__contains__)
        return self._part(first, nodes, list(map(first.name, results)), self.names, stays=self.forward_stays)

    def backward(self, through: tuple[int, ...], wanted: tuple[int, ...], recorded: bool) -> Part:
        """What makes gradients, by positions among those of `parts_of`, of some results.

        It takes the arguments that are `read`, what is `stateful`, and the gradients of those of the results. Where a
        tape records it, what is called in it is part of it: TensorFlow has no gradient of calls that are imported.
        """
        return self._once((through, wanted, recorded), lambda: self._backward(through, wanted, recorded))

    def _backward(self, through: tuple[int, ...], wanted: tuple[int, ...], recorded: bool) -> Part:
        found, start = self.joint.flat(through)
        reading = Reading(self.joint, self.joint.trace(every=recorded))
        gradients = [reading.results[start + k] for k in wanted]
        nodes, _ = reading.behind(gradients, reading.is_given)
        given = [*(reading.names[k] for k in self.read), *self.stateful, *(t.op.name for t in found.upstream)]
        # As a call that stays a call it is not merged with the forward pass that it makes again.
        return self._part(reading, nodes, list(map(reading.name, gradients)), given, stays=True)

    def _part(self, reading: Reading, nodes: set[int], wanted: list[str], given: Sequence[str], stays: bool) -> Part:
        specs = {name: reading.spec(reading.trace.tensor(name)) for name in given}
        return reading.part([reading.trace.nodes[i] for i in sorted(nodes)], wanted, specs, stays=stays)

    def parts_of(self, through: tuple[int, ...]) -> list[int]:
        """Of how many tensors each gradient consists: one, three if it is sparse, none if there is none."""
        return self._once(through, lambda: self.joint.flat(through)[0].parts)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = own_replica.in_own_thread(make)
        return self._known[key]
