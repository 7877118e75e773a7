"""What can be recomputed of a step: layers, each in all its calls, and functional parts by plans of their own."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import keras

from tfgc._calls.replays import Piece, stored_products
from tfgc._calls.step import Call, Step
from tfgc._core.plan import Plan


@dataclasses.dataclass(frozen=True, eq=False)
class Option:
    """One thing that a plan may do with a layer."""

    layer: keras.Layer
    name: str
    plan: Plan | None  # of segments, where the layer is a functional model; None to recompute the layer as a whole
    calls: tuple[Call, ...]  # of the layer, that this changes
    pieces: tuple[Piece, ...]  # what is recomputed then
    selective: bool = False  # whether the replay takes over dear products


# In the order of calls, outer ones first, so that of choices that are alike always the same one is found
Choice: TypeAlias = tuple[Option, ...]


def whole_layers(step: Step, names: Mapping[str, keras.Layer]) -> list[Option]:
    """Options for each named layer that can be run twice and has gradients, in the order of calls.

    A layer that holds dear products has two: without them and, behind it, with them stored.

    `layer.call` serves all calls of a layer, so that one call that must not be run twice rules the layer out.
    """
    kept = {id(call.layer) for call in step.obstacles}
    path = {id(layer): name for name, layer in names.items() if id(layer) not in kept}
    found = []
    for layer, calls in trained_calls(step).items():
        # The dropout masks of a cell belong to its RNN.
        if id(layer) in path and calls and not hasattr(layer, "reset_dropout_mask"):
            ways = (False, True) if any(stored_products(step, Piece((call,), True)) for call in calls) else (False,)
            for selective in ways:
                pieces = tuple(Piece((call,), selective) for call in calls)
                found.append(Option(layer, path[id(layer)], None, tuple(calls), pieces, selective))
    return found


def trained_calls(step: Step) -> dict[keras.Layer, list[Call]]:
    """The calls of each layer of a step that have gradients."""
    found: dict[keras.Layer, list[Call]] = {}
    for call in step.root.within():
        if isinstance(call.layer, keras.Layer):
            found.setdefault(call.layer, []).extend([call] if call in step.late_of else [])
    return found


def pieces_of(choice: Iterable[Option]) -> list[Piece]:
    """What is recomputed by a choice: where a chosen layer is inside another, the outer one counts."""
    outermost = _outermost(choice)
    return [piece for option in outermost for piece in option.pieces if not _covered(piece, option, outermost)]


def reduced(choice: Iterable[Option]) -> Choice:
    """The same choice without the layers that are inside other chosen ones in all their calls."""
    return tuple(_outermost(choice))


def _outermost(choice: Iterable[Option]) -> list[Option]:
    options = sorted(dict.fromkeys(choice), key=lambda o: (o.calls[0].first, o.calls[0].depth, o.name))
    return [o for o in options if not all(_covered(Piece((call,)), o, options) for call in o.calls)]


def _covered(piece: Piece, option: Option, options: Sequence[Option]) -> bool:
    """Whether a piece runs inside of what another option changes."""
    calls = {call for other in options if other is not option for call in other.calls}
    return any(call in calls for call in piece.calls[0].ancestors())
