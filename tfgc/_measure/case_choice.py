"""Which cases `compare` measures: its arguments checked, and turned into a `Case` for each way to train."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfgc import strategies as known_strategies
from tfgc._core.modes import MODES, check_mode
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, check_int
from tfgc._measure import examples
from tfgc._records.job import Case
from tfgc._units import check_budget
from tfgc.strategies import Strategy

if TYPE_CHECKING:
    import keras

PlanLike = str | os.PathLike[str] | Plan
BASELINES = (("plain", "eager"), ("plain", "graph"))


def plan_cases(
    build: Callable[..., keras.Model] | str,
    batch_size: int,
    wanted: Strategy | Sequence[Strategy] | None = None,
    image_size: int | None = None,
    steps: int = 5,
    modes: str | Sequence[str] = ("compiled", "graph"),
    memory_limit: int | None = None,
    *,
    plans: PlanLike | Iterable[PlanLike] = (),
    budget: float | str | None = None,
    input_shapes: Mapping[str, tuple[int | None, ...]] | None = None,
    example: Any = None,
) -> list[Case]:
    """The cases that `compare` measures; raises before anything is run."""
    batch_size, steps = check_int("batch_size", batch_size), check_int("steps", steps)
    if image_size is not None:
        image_size = check_int("image_size", image_size)
    if memory_limit is not None:
        memory_limit = check_int("memory_limit", memory_limit)
    if budget is not None:
        check_budget(budget)
    given = _read(plans)
    network = name_of(build)
    if example is not None:
        refuse_with_example(input_shapes=input_shapes)
        example = examples.portable(example)
    if wanted is None:
        least = "sqrt" if example is None else "optimal"
        wanted = () if given and budget is None else ("budget" if budget is not None else least,)
    wanted = list(wanted) if isinstance(wanted, Iterable) and not isinstance(wanted, str) else [wanted]
    if not wanted and not given:
        raise OptionError(
            f"name at least one strategy to compare with plain: {', '.join(known_strategies.available())}"
        )
    modes = (modes,) if isinstance(modes, str) or not isinstance(modes, Iterable) else tuple(modes)
    if not modes:
        raise OptionError(f"modes=(): name at least one mode to train in: {', '.join(MODES)}")
    for mode in modes:
        check_mode(mode)
    modes = tuple(dict.fromkeys(modes))
    chosen = [_chosen(item, budget) for item in wanted]
    if budget is not None and not any("budget" in choice["options"] for choice in chosen):
        able = ", ".join(filter(known_strategies.honours_budget, known_strategies.available()))
        raise OptionError(f"budget={budget!r}: none of the strategies honours a budget; these do: {able}")
    common: dict[str, Any] = {
        "batch_size": batch_size,
        "steps": steps,
        "memory_limit": memory_limit,
        "input_shapes": input_shapes,
        "example": example,
    }
    baselines = [*BASELINES, *([("plain", "xla")] if "xla" in modes else [])]
    ways: list[tuple[dict[str, Any], str]] = [({"case": case}, mode) for case, mode in baselines]
    ways += [(choice, mode) for choice in _told_apart([*chosen, *given]) for mode in modes]
    return [Case(network, (build, image_size), mode=mode, **choice, **common) for choice, mode in ways]


def refuse_with_example(**given: Any) -> None:
    """Raise `OptionError` for what applies to functional models, not to those that are measured with an example."""
    name = next((name for name, value in given.items() if value is not None), None)
    if name is not None:
        raise OptionError(
            f"{name}={given[name]!r} and example= exclude each other: a model that takes an example has the sizes of "
            "that, and its step is planned"
        )


def name_of(build: object) -> str:
    """The name of a network that is given by its name or by a function that builds it."""
    is_model = hasattr(build, "trainable_variables") and not isinstance(build, type)
    if not (callable(build) or isinstance(build, str)) or is_model:
        raise OptionError(f"{build!r}: give a function that builds the model, or its name: each case builds its own")
    return build if isinstance(build, str) else getattr(build, "__name__", "model")


def _chosen(item: Strategy, budget: float | str | None) -> dict[str, Any]:
    """The fields of a case that are about a strategy."""
    label, strategy, options = labelled(item, {}, budget)
    if budget is not None and known_strategies.honours_budget(strategy):
        options, label = {**options, "budget": budget}, f"{label}({budget})"
    return {"case": label, "strategy": strategy, "options": options}


def labelled(
    item: Strategy, options: Mapping[str, Any], budget: float | str | None
) -> tuple[str, Strategy, dict[str, Any]]:
    """What a strategy is called, such as `sqrt(8)`; itself; and its options, with those of its name, all checked."""
    strategy, more = known_strategies.named(item) if isinstance(item, str) else (item, {})
    options = {**more, **options}
    known_strategies.check_options(strategy, options, budget if known_strategies.honours_budget(strategy) else None)
    if callable(strategy):
        return getattr(strategy, "__name__", str(strategy)), strategy, options
    segments = options.get("segments")
    return strategy if segments is None else f"{strategy}({segments})", strategy, options


def _read(plans: PlanLike | Iterable[PlanLike]) -> list[dict[str, Any]]:
    """The fields of a case that are about a plan, for each of `plans`."""
    choices: list[dict[str, Any]] = []
    for item in plans if isinstance(plans, Iterable) and not isinstance(plans, str) else [plans]:
        if isinstance(item, Plan):
            plan, label = item, f"plan {item.strategy}"
        elif isinstance(item, (str, os.PathLike)):
            plan, label = Plan.load(item), os.path.basename(item)
        else:
            raise OptionError(f"plans: {item!r} is neither a tfgc.Plan nor the path of one")
        choices.append({"case": label, "plan": plan.to_json()})
    return choices


def _told_apart(choices: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices with names that differ, also from those of the baselines: two functions may have one name."""
    seen, named = {case: 1 for case, _ in BASELINES}, []
    for choice in choices:
        label = choice["case"]
        seen[label] = seen.get(label, 0) + 1
        named.append({**choice, "case": f"{label} #{seen[label]}" if seen[label] > 1 else label})
    return named


def serialized(optimizer: Any) -> Any:
    """An optimizer as plain data; a name as it is."""
    if optimizer is None or isinstance(optimizer, (str, dict)):
        return optimizer
    import keras

    if not isinstance(optimizer, keras.Optimizer):
        raise OptionError(f"optimizer={optimizer!r}: give a keras.Optimizer or its name")
    return keras.optimizers.serialize(optimizer)
