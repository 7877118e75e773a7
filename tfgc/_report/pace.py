"""How long steps take, and against plain ones, in words: a difference within the spread is called that."""

from collections.abc import Sequence

from tfgc._records.measurement import Measurement
from tfgc._units import format_percent, format_seconds


def seconds(record: Measurement) -> str:
    """The median time of a step, and how far its spread reaches to either side.

    >>> seconds(Measurement("net", "plain", "graph", 8, step_seconds=2.0, round_seconds=(1.9, 2.0, 2.1)))
    '2 s ± 5 %'
    """
    words, spread = "" if record.step_seconds is None else format_seconds(record.step_seconds), record.spread()
    if spread is None or not record.step_seconds:
        return words
    return f"{words} ± {format_percent((spread[1] - spread[0]) / 2 / record.step_seconds, '.0f')}"


def overhead(record: Measurement, baseline: Measurement | None) -> str:
    """The extra time against a baseline with its spread, or that it is within that.

    >>> plain = Measurement("net", "plain", "graph", 8, round_seconds=(1.0, 1.0, 1.0))
    >>> overhead(Measurement("net", "sqrt", "graph", 8, round_seconds=(1.1, 1.2, 1.3)), plain)
    '+20 % (+10 to +30)'
    >>> overhead(Measurement("net", "sqrt", "graph", 8, round_seconds=(0.9, 1.2, 1.3)), plain)
    'within the spread (-10 to +30 %)'
    """
    extra = record.against(baseline)[1]
    spread = record.spread(baseline) if baseline is not None else None
    if extra is None or spread is None:
        return format_percent(extra, "+.0f")
    low, high = (f"{100 * end:+.0f}" for end in spread)
    if spread[0] <= 0 <= spread[1]:
        return f"within the spread ({low} to {high} %)"
    return f"{format_percent(extra, '+.0f')} ({low} to {high})"


def timing(records: Sequence[Measurement]) -> str:
    """How steps were timed, in a sentence or two.

    >>> timing([Measurement("net", "plain", "graph", 8, step_seconds=1.0, round_seconds=(1.0,))])
    'median of 1 step, in which cases took turns: too few for a spread.'
    """
    timed = [record for record in records if record.step_seconds is not None]
    rounds = max((len(record.round_seconds) for record in timed), default=0)
    if not rounds:
        return "median seconds of cases that ran one after the other, so that a few % say nothing."
    words = f"median of {rounds} step{'s' * (rounds > 1)}, in which cases took turns"
    if rounds < 2:
        return f"{words}: too few for a spread."
    return (
        f"{words}, and the {'spread, which holds the true median 9 times in 10' if rounds > 4 else 'least and most'}."
    )
