"""Print and parse bytes and seconds the way people write them. Decimal: 1 GB = 10**9 bytes."""

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from tfgc._errors import OptionError

# A "B" may follow.
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


# No step needs so few bytes: a bare number up to here was meant in percent or gigabytes, and not in percent below the
# least that plans may reach.
PERCENT, _LEAST_PERCENT = 100, 10


def parse_bytes(text: object) -> int:
    """Read a positive number of bytes.

    >>> parse_bytes("4GB"), parse_bytes("2g"), parse_bytes("1.5 MiB"), parse_bytes(2_000)
    (4000000000, 2000000000, 1572864, 2000)
    """
    found = re.fullmatch(r"\s*([\d_]*\.?\d*(?:e\d+)?)\s*([A-Za-z]*)\s*", str(text))
    count = 0.0
    unit = found[2].upper().removesuffix("B") if found else None
    if found and unit in _UNITS and not isinstance(text, bool):
        with contextlib.suppress(ValueError):
            count = float(found[1]) * _UNITS[unit]
    if not 1 <= count < 2**63:
        raise OptionError(f"budget={text!r}: must be a positive number of bytes such as 4_000_000_000 or '4GB'")
    return int(count)


def bare_number(budget: object) -> float | None:
    """The number that a budget is, or spells without a unit; None for others.

    >>> bare_number(0.7), bare_number("10"), bare_number("4GB"), bare_number(None), bare_number(True)
    (0.7, 10.0, None, None, None)
    """
    if isinstance(budget, bool):
        return None
    try:
        return float(budget)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return None


def check_budget(budget: Any) -> float | None:
    """Raise `OptionError` unless `budget` is one; return the share of the plain step that it stands for, if it does."""
    share, bare = None, bare_number(budget)
    if isinstance(budget, str) and budget.strip().endswith("%"):
        with contextlib.suppress(ValueError):
            share = float(budget.strip()[:-1]) / 100
        if share is None or not 0 < share < float("inf"):
            raise OptionError(f"budget={budget!r}: a share is a positive part of the plain step's peak, such as '60%'")
    elif bare is not None and (0 < bare < 1 or (bare == 1 and str(budget).strip() != "1")):
        share = bare
    elif not is_auto(budget):
        try:
            parse_bytes(budget)
        except OptionError as error:
            raise OptionError(f"{error}, a share of the plain step such as '70%' or 0.7, or 'auto'") from None
        if bare is not None and bare <= PERCENT:
            share = f"'{budget}%' for that" if bare >= _LEAST_PERCENT else "'70%' (all of it: 1.0), for example, for a"
            raise OptionError(
                f"budget={budget!r} is that many bytes: write '{budget}GB' for gigabytes, or {share} share of the "
                "plain step"
            )
    return share


def is_auto(budget: Any) -> bool:
    """Whether a budget stands for the memory that is free."""
    return isinstance(budget, str) and budget.strip().lower() == "auto"


def parse_count(text: str) -> int | None:
    """The number that decimal digits stand for; None for other text, and for more digits than sizes have.

    >>> parse_count("64"), parse_count("-1"), parse_count("²"), parse_count("9" * 5000)
    (64, None, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def format_bytes(count: float) -> str:
    """
    >>> format_bytes(0), format_bytes(999), format_bytes(2_621_000_000)
    ('0 B', '999 B', '2.62 GB')
    >>> format_bytes(999_700_000), format_bytes(1_234e9)
    ('1 GB', '1,234 GB')
    """
    return _scaled(count, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)))


def format_needs(needed: int, plain: int | None = None, budget: int | None = None) -> str:
    """What a step needs on the device, and of how much: the budget, or else the plain step.

    >>> format_needs(389_000_000, 471_000_000), format_needs(389_000_000, 471_000_000, 400_000_000)
    ('needs 389 MB of 471 MB', 'budget 400 MB: needs 389 MB')
    """
    if budget is not None:
        return f"budget {format_bytes(budget)}: needs {format_bytes(needed)}"
    return f"needs {format_bytes(needed)}" + ("" if plain is None else f" of {format_bytes(plain)}")


def format_measured(measured: int, predicted: int | None = None, budget: int | None = None) -> str:
    """What a step was measured to need, and of how much: the budget, or else what was predicted.

    >>> format_measured(391_000_000, 389_000_000, 400_000_000), format_measured(391_000_000)
    ('budget held: 391 MB measured of 400 MB', '391 MB measured')
    >>> format_measured(68_000_000, 46_000_000), format_measured(409_000_000, budget=400_000_000)
    ('prediction missed by 48 %: 68 MB measured of 46 MB', 'budget missed by 2 %: 409 MB measured of 400 MB')
    """
    aim = predicted if budget is None else budget
    if aim is None:
        return f"{format_bytes(measured)} measured"
    over = (measured / aim - 1) * 100
    which, most = ("prediction", 1) if budget is None else ("budget", 0)
    kept = f"missed by {over:{'.1g' if over < 1 else '.0f'}} %" if over > most else "held"
    return f"{which} {kept}: {format_bytes(measured)} measured of {format_bytes(aim)}"


def format_seconds(seconds: float) -> str:
    """
    >>> format_seconds(0), format_seconds(0.0123), format_seconds(73.4)
    ('0 s', '12.3 ms', '73.4 s')
    >>> format_seconds(0.9996), format_seconds(4321.5), format_seconds(1e-9)
    ('1 s', '4,322 s', '0.001 us')
    """
    return _scaled(seconds, (("s", 1), ("ms", 1e-3), ("us", 1e-6)))


def format_percent(ratio: float | None, form: str = ".1f") -> str:
    """
    >>> format_percent(0.1234), format_percent(-0.5, "+.0f"), format_percent(None)
    ('12.3 %', '-50 %', '')
    """
    return "" if ratio is None else f"{ratio * 100:{form}} %"


def format_work(flops: float) -> str:
    """
    >>> format_work(7_720_000_000), format_work(0)
    ('7.72 Gflop', '0 flop')
    """
    return _scaled(flops, (("Tflop", 1e12), ("Gflop", 1e9), ("Mflop", 1e6), ("kflop", 1e3), ("flop", 1)))


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    base = next(unit for unit in units if unit[1] == 1)
    value = float(f"{value:.3g}") if abs(value) < 1000 * units[0][1] else value  # so that its unit fits what is printed
    name, size = next((unit for unit in units if abs(value) >= unit[1]), units[-1]) if value else base
    number = value / size
    return f"{number:,.0f} {name}" if abs(number) >= 1000 else f"{number:.3g} {name}"
