"""Plans by calls for one model and one batch: what the search found, as `Plan`s."""

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

import keras

from tfgc._calls import descriptions, names, options, parts, reading, tracing
from tfgc._calls.choice import Judged, Search
from tfgc._calls.replays import Piece
from tfgc._calls.simulation import Simulator
from tfgc._core.plan import Plan
from tfgc._costs import update_bytes
from tfgc._errors import InfeasibleBudgetError, NotReplayableWarning, UnsupportedModelError, warn
from tfgc._simulate.simulator import Prediction

STRATEGY = "calls"
# The share of a step that budgets keep free: TensorFlow runs weight gradients beside what follows, while one operation
# after the other is simulated. Steps of six models needed up to 5 % more, single ones up to 20 %.
_BESIDE = 0.05


class NoLayersError(UnsupportedModelError):
    """A model computes by itself."""


class CallPlans:
    """Plans by calls for a model and an example as `tracing.trace` takes them.

    Layers `among` those given may be recomputed, each as a whole; by default all, and functional parts by their own
    plans.
    """

    def __init__(
        self,
        model: keras.Model,
        example: Any,
        among: Collection[keras.Layer] | None = None,
        *,
        xla: bool = False,
        optimizer: keras.Optimizer | str | None = None,
    ) -> None:
        self.model, self._among, self._batch_size = model, among, tracing.batch_size(example)
        update = update_bytes.NO_UPDATE if xla else update_bytes.of_model(model, optimizer)
        traced = tracing.trace(model, example, xla=xla)
        self.step = reading.read(traced, xla=xla, update=update)
        self._early = sorted(update_bytes.early_bytes(model, update))
        if not any(isinstance(call.layer, keras.Layer) for call in self.step.root.within()):
            raise NoLayersError(f"{model.name!r} calls no layers, so there is nothing to recompute")
        self.simulator = Simulator(self.step)
        self._layers = names.layers_by_name(model)
        self.named = descriptions.call_names(self.step.root, self._layers, model.name)
        self._lines = names.describe(model)
        self._there = [*(v.value.dtype.size * math.prod(v.shape) for v in model.variables), *self.step.resident]
        self._allocations: dict[tuple[Piece | bool, ...], int] = {}

    @functools.cached_property
    def _options(self) -> list[options.Option]:
        return options.whole_layers(self.step, self._layers)

    @functools.cached_property
    def _search(self) -> Search:
        self._warn_of_obstacles()
        # Under XLA nothing selective is chosen, but a plan that is given may be.
        found = [option for option in self._options if not (option.selective and self.step.xla)]
        if self._among is not None:
            wanted = set(map(id, self._among))
            return Search(self.simulator, [option for option in found if id(option.layer) in wanted])
        planned = parts.planned_parts(self._layers, options.trained_calls(self.step), self.step.xla)
        return Search(self.simulator, [*found, *planned])

    def least(self) -> Plan:
        """The plan of least peak."""
        return self._plan(self._search.least)

    def front(self) -> list[Plan]:
        """The Pareto front, from the least peak to the plain step."""
        return [self._plan(judged) for judged in self._search.front]

    def fitting(self, total: int, fixed: int) -> Plan:
        """The plan of least work whose whole step, of which `fixed` bytes are weights and slots, fits in `total`."""
        room = total - self.constant(fixed)
        for judged in self._search.judged:
            if self._with_reserve(judged, judged.outcome.peak_bytes) <= room and self.reserved(judged) <= room:
                return self._plan(judged)
        least = self._search.least
        for judged in self._search.judged:
            if self._with_reserve(judged, judged.outcome.peak_bytes) < self.reserved(least):
                least = min(least, judged, key=self.reserved)
        raise InfeasibleBudgetError(total, self.reserved(least) + self.constant(fixed), self.named[least.outcome.owner])

    def reserved(self, judged: Judged) -> int:
        """What a budget keeps for a choice: where something is recomputed, more than one operation at a time needs."""
        return self._with_reserve(judged, self._needed(judged))

    def _with_reserve(self, judged: Judged, count: int) -> int:
        return round(count * (1 + _BESIDE * bool(judged.choice)))

    def plain_bytes(self, fixed: int) -> int:
        """What the plain step needs."""
        return self._needed(self._search.plain) + self.constant(fixed)

    def constant(self, fixed: int) -> int:
        """Bytes that count as there all the time: weights and slots, and what is `resident` in a `Step`."""
        return fixed + sum(self.step.resident)

    def estimate(self, plan: Plan | None, fixed: int) -> Prediction:
        """What a step by a plan of this model needs; by none, the plain step."""
        chosen = [] if plan is None else self._chosen(plan)
        pieces = options.pieces_of(chosen)
        outcome = self.simulator.outcome(pieces)
        there = self.constant(fixed) + sum(self._held_early(pieces))
        again = {piece.calls[0] for piece in pieces}
        named = [(call, name) for call, name in self.named.items() if call is not self.step.root]
        return Prediction(
            peak_bytes=outcome.peak_bytes + there,
            activation_bytes=self.simulator.activation_bytes(pieces),
            node=self.named[outcome.owner],
            phase=outcome.phase,
            work=self.step.work + outcome.work,
            plain_work=self.step.work,
            unit="flop",
            runs={name: 1 + any(c in again for c in (call, *call.ancestors())) for call, name in named},
            timeline=tuple((float(w), count, self.named[call]) for w, count, call in self.simulator.timeline(pieces)),
            fixed_bytes=there,
            allocated_bytes=max(outcome.peak_bytes * self.step.xla, self._allocated(pieces, most=False)) + there,
            most_allocated_bytes=self.reserved(Judged(options.reduced(chosen), outcome)) + self.constant(fixed),
        )

    @functools.cached_property
    def floor(self) -> tuple[int, str]:
        """The bytes that no plan gets below, and the call that sets them."""
        count, call = descriptions.floor(self.step)
        return count, self.named[call]

    def check(self, plan: Plan) -> None:
        """Raise `PlanMismatchError` unless this is a plan for the model."""
        plan.check_model(self._lines)

    def with_figures(self, plan: Plan) -> Plan:
        """A plan of this model with its figures for this batch."""
        return dataclasses.replace(self._plan(self.judged(plan)), strategy=plan.strategy, options=plan.options)

    def judged(self, plan: Plan) -> Judged:
        """What a plan of this model needs."""
        chosen = self._chosen(plan)
        return Judged(options.reduced(chosen), self.simulator.outcome(options.pieces_of(chosen)))

    def _chosen(self, plan: Plan) -> list[options.Option]:
        self.check(plan)
        whole = {option.name: option for option in self._options if not option.selective}
        selective = {option.name: option for option in self._options if option.selective}
        chosen = {name: whole[name] for name in plan.recomputed_layers if name in whole}
        chosen.update({name: selective[name] for name in plan.selective_layers if name in selective})
        trained = {layer: calls for layer, calls in options.trained_calls(self.step).items() if calls}
        planned = [(n, self._layers[n], part) for n, part in plan.parts.items() if self._layers[n] in trained]
        of_parts = [parts.planned_part(name, layer, trained[layer], part) for name, layer, part in planned]
        return [*chosen.values(), *of_parts]

    def _needed(self, judged: Judged) -> int:
        """The larger of what buffers need and what the allocator hands out; the most, where something is recomputed."""
        pieces = options.pieces_of(judged.choice)
        return max(judged.outcome.peak_bytes, self._allocated(pieces, bool(pieces))) + sum(self._held_early(pieces))

    def _held_early(self, pieces: Sequence[Piece]) -> list[int]:
        """What updates hold early, by weight. Where they wait for gradients (`waiting_updates`), two do at a time."""
        return self._early[-2:] if pieces else self._early

    def _allocated(self, pieces: list[Piece], most: bool) -> int:
        if (key := (*pieces, most)) not in self._allocations:
            there = [*self._there, *self._held_early(pieces)]
            self._allocations[key] = self.simulator.allocated_bytes(pieces, there, most)
        return self._allocations[key]

    def _plan(self, judged: Judged) -> Plan:
        return Plan(
            segments=tuple(descriptions.Segments(self.simulator, judged.choice, self.named)),
            strategy=STRATEGY,
            model=self._lines,
            batch_size=self._batch_size,
            outlook=descriptions.outlook(self.step, judged.outcome, self.simulator.outcome(()), self.named),
            options={"mode": "xla"} if self.step.xla else {},
            calls=True,
            parts={option.name: option.plan for option in judged.choice if option.plan is not None},
        )

    def _warn_of_obstacles(self) -> None:
        """Name the innermost calls that cannot be run twice."""
        obstacles = self.step.obstacles
        for call, obstacle in obstacles.items():
            if call.parent is not None and not any(child in obstacles for child in call.children):
                message = f"{self.named[call]!r}, and what holds it, cannot be run twice and is kept: {obstacle}."
                warn(message, NotReplayableWarning)
