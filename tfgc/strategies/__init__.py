"""Methods that choose a plan, one a file, found by listing this folder.

A strategy is a function `plan(graph, *, budget=None, **options) -> Plan`. It needs neither TensorFlow nor Keras, and
any function of that signature is accepted wherever a name is. Its budget is in bytes of buffers, weights and optimizer
slots left out, as `Outlook.peak_bytes` counts them.
"""

import contextlib
import difflib
import importlib
import inspect
import pkgutil
import reprlib
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeAlias

from tfgc._core.graph import Graph
from tfgc._core.plan import Plan, names_file
from tfgc._errors import OptionError, check_int, did_you_mean
from tfgc._simulate import outlooks
from tfgc._units import check_budget, parse_count

Strategy: TypeAlias = str | Callable[..., Plan]
# Options of `tfgc.plan` and `tfgc.enable` that a misspelled one may have been meant to be.
_OF_EVERY_PLAN = (
    "batch_size", "budget", "confirm", "example", "input_shapes", "layers", "loss", "mode", "model",
    "optimizer", "strategy",
)  # fmt: skip


def available() -> list[str]:
    """Names of the strategies, sorted.

    >>> "sqrt" in available()
    True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def get(strategy: Strategy) -> Callable[..., Plan]:
    """Return the planning function of a strategy given by name; a function is returned unchanged.

    Raises:
        OptionError: If the name is unknown; the message suggests similar ones.

    >>> get("sqr")
    Traceback (most recent call last):
    tfgc._errors.OptionError: there is no strategy 'sqr'; did you mean 'sqrt'? (available: articulation, budget, ...)
    """
    return strategy if callable(strategy) else _module(strategy).plan


def _module(name: str) -> ModuleType:
    if name not in (known := available()):
        if isinstance(name, Plan):
            raise OptionError(f"strategy= is a plan (made by {name.strategy!r}): tfgc.enable(model, plan) trains by it")
        base, _, count = str(name).partition(":")
        hint = f"; give strategy={base!r}, segments={count or 8}" if base in known else ""
        hint = hint or did_you_mean(str(name).lower(), known)
        raise OptionError(f"there is no strategy {name!r}{hint} (available: {', '.join(known)})")
    return importlib.import_module(f"{__name__}.{name}")


def check_plan(plan: object, advice: str = "make one with tfgc.plan(model, batch_size, {})") -> None:
    """Raise `OptionError` unless `plan` is a `Plan` or None; the advice goes on with what the user may have meant."""
    if isinstance(plan, Plan | None):
        return
    said = f"plan={reprlib.repr(plan)} is not a tfgc.Plan"
    if names_file(plan):
        raise OptionError(f"{said}: tfgc.Plan.load({str(plan)!r}) reads the file of one")
    if isinstance(plan, str) and plan.lstrip().startswith("{"):
        raise OptionError(f"{said}: tfgc.Plan.from_json(text) reads the text of one")
    known = available()
    near = difflib.get_close_matches(plan.partition(":")[0].lower(), known, 1) if isinstance(plan, str) else []
    meant = f"strategy={near[0] if near else 'optimal'!r}"
    if not near:
        with contextlib.suppress(OptionError):
            check_budget(plan)
            meant = f"budget={plan!r}"
    raise OptionError(f"{said}: {advice.format(meant)}")


def named(text: str) -> tuple[str, dict[str, int]]:
    """The name and options that a text such as `sqrt:8` stands for.

    >>> named("sqrt:8"), named("optimal")
    (('sqrt', {'segments': 8}), ('optimal', {}))
    """
    name, colon, count = text.partition(":")
    if not colon:
        return name, {}
    segments = parse_count(count)
    if segments is None:
        raise OptionError(f"strategy {text!r}: a number of segments must follow the colon")
    return name, {"segments": check_int("segments", segments)}


def honours_budget(strategy: Strategy) -> bool:
    """Whether a strategy takes a budget.

    >>> honours_budget("budget"), honours_budget("sqrt")
    (True, False)
    """
    return "budget" in inspect.signature(get(strategy)).parameters


def apply(strategy: Strategy, graph: Graph, *, budget: int | None = None, **options: Any) -> Plan:
    """Plan `graph` by a strategy, refusing options that it does not accept; the plan has its `Outlook`."""
    options = check_options(strategy, options, budget)
    plan = get(strategy)(graph, **options)
    if not isinstance(plan, Plan):
        raise OptionError(
            f"strategy {_name(strategy)!r} returned {plan!r}, and no tfgc.Plan: end it with return Plan.from_cuts(...)"
        )
    return outlooks.with_outlook(graph, plan)


def check_options(strategy: Strategy, options: Mapping[str, Any], budget: Any = None) -> dict[str, Any]:
    """Return the options to call a strategy with, refusing those that it does not accept."""
    name, taken = _name(strategy), inspect.signature(get(strategy)).parameters
    if budget is not None and "budget" not in taken:
        raise OptionError(f"strategy {name!r} does not honour a budget; leave budget={budget!r} out")
    check_names(strategy, options)
    for k, p in taken.items():
        if k == "budget" and p.default is p.empty and budget is None:
            raise OptionError(f"strategy {name!r} needs budget=: bytes that a step may use, such as '4GB'")
        if k not in ("graph", "budget") and p.default is p.empty and p.kind is p.KEYWORD_ONLY and k not in options:
            raise OptionError(f"strategy {name!r} needs the option {k}=...")
    return {**options} if budget is None else {**options, "budget": budget}


def check_names(strategy: Strategy, options: Iterable[str]) -> None:
    """Refuse options that a strategy does not have.

    >>> check_names("optimal", ["batch_size"])
    Traceback (most recent call last):
    tfgc._errors.OptionError: strategy 'optimal' takes no option 'batch_size': tfgc.plan takes it ...
    """
    taken = inspect.signature(get(strategy)).parameters
    if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        return
    known = [k for k in taken if k not in ("graph", "budget")]
    for option in options:
        if option not in known:
            offer = f"it takes {', '.join(known)}" if known else "it takes none"
            others = [name for name in available() if option in inspect.signature(get(name)).parameters]
            offers = f"; {', '.join(others)} {'take' if others[1:] else 'takes'} it"
            hint = offers if others else did_you_mean(option, [*known, *_OF_EVERY_PLAN])
            hint = ": tfgc.plan takes it beside the strategy" if option in _OF_EVERY_PLAN else hint
            hint = ": tfgc.enable(model, layers=...) recomputes what you name" if option == "layers" else hint
            hint = ": tfgc.recompute(fn, slices=...) runs what you name in slices" if option == "slices" else hint
            raise OptionError(f"strategy {_name(strategy)!r} takes no option {option!r}{hint} ({offer})")


def _name(strategy: Strategy) -> str:
    return strategy if isinstance(strategy, str) else getattr(strategy, "__name__", repr(strategy))


def segment_count(graph: Graph, segments: int | None) -> int:
    """Check a number of segments; None stands for about the square root of the number of nodes."""
    n = len(graph)
    if segments is None:
        return max(1, round(n**0.5))
    segments = check_int("segments", segments)
    if segments > n:
        raise OptionError(f"segments={segments}: the model has {n} nodes, so it cannot be cut into more segments")
    return segments
