"""Methods that choose a plan, one a file, found by listing this folder.

A strategy is a function `plan(graph, *, budget=None, **options) -> Plan`. It
needs neither TensorFlow nor Keras, and any function of that signature can be
given wherever a name can. Its budget is in buffers, weights and slots left out, as
`Outlook.peak_bytes` counts them; what budgets of users mean, and how they come to that, is in `_planning.budget_fit`.
"""

import importlib
import inspect
import pkgutil

from tfgc._errors import OptionError, check_int, did_you_mean
from tfgc._simulate import outlooks


def available():
    """Names of the strategies, sorted.

    >>> "sqrt" in available()
    True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def get(strategy):
    """Return the planning function for a name; a function is returned as it is.

    Raises:
        OptionError: For an unknown name, with near ones.

    >>> get("sqr")
    Traceback (most recent call last):
    tfgc._errors.OptionError: there is no strategy 'sqr'; did you mean 'sqrt'? (there are: articulation, budget, ...)
    """
    if callable(strategy):
        return strategy
    if strategy not in available():
        raise OptionError(
            f"there is no strategy {strategy!r}{did_you_mean(strategy, available())} "
            f"(there are: {', '.join(available())})"
        )
    return importlib.import_module(f"{__name__}.{strategy}").plan


def named(text):
    """The name and options that `sqrt:8` stands for.

    >>> named("sqrt:8"), named("optimal")
    (('sqrt', {'segments': 8}), ('optimal', {}))
    """
    name, colon, count = text.partition(":")
    if not colon:
        return name, {}
    if not count.isdigit():
        raise OptionError(f"strategy {text!r}: what follows the colon is a number of segments")
    return name, {"segments": check_int("segments", int(count))}


def honours_budget(strategy):
    """Whether a strategy takes a budget.

    >>> honours_budget("budget"), honours_budget("sqrt")
    (True, False)
    """
    return "budget" in inspect.signature(get(strategy)).parameters


def apply(strategy, graph, *, budget=None, **options):
    """Plan `graph` by a strategy, refusing options that it does not take; the plan has its `Outlook`."""
    options = check_options(strategy, options, budget)
    return outlooks.with_outlook(graph, get(strategy)(graph, **options))


def check_options(strategy, options, budget=None):
    """Return the options to call a strategy with, refusing what it does not take."""
    plan = get(strategy)
    name = strategy if isinstance(strategy, str) else getattr(plan, "__name__", repr(plan))
    taken = inspect.signature(plan).parameters
    if budget is not None and "budget" not in taken:
        raise OptionError(f"strategy {name!r} does not honour a budget; leave budget={budget!r} out")
    if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        known = set(options)
    else:
        known = [k for k in taken if k not in ("graph", "budget")]
    for option in options:
        if option not in known:
            offer = f"it takes {', '.join(known)}" if known else "it takes none"
            raise OptionError(f"strategy {name!r} takes no option {option!r}{did_you_mean(option, known)} ({offer})")
    for k, p in taken.items():
        if k == "budget" and p.default is p.empty and budget is None:
            raise OptionError(f"strategy {name!r} needs budget=: bytes that a step may use, such as '4GB'")
        if k not in ("graph", "budget") and p.default is p.empty and p.kind is p.KEYWORD_ONLY and k not in options:
            raise OptionError(f"strategy {name!r} needs the option {k}=...")
    return options if budget is None else {**options, "budget": budget}


def segment_count(graph, segments):
    """Check a number of segments; None stands for about the square root of the nodes."""
    n = len(graph)
    if segments is None:
        return max(1, round(n**0.5))
    segments = check_int("segments", segments)
    if segments > n:
        raise OptionError(
            f"segments={segments}: the model has {n} nodes and cannot be cut into more segments than that"
        )
    return segments
