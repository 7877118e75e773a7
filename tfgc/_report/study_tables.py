"""The tables of a report on one study, for HTML and Markdown alike. No TensorFlow."""

import dataclasses
import math
from collections.abc import Sequence

from tfgc._records.measurement import Results, Study
from tfgc._records.predicted import SegmentSummary
from tfgc._records.table import TextTable
from tfgc._report import command_tables, fronts, study_summary
from tfgc._units import format_bytes, format_percent


def joined(results: Sequence[Results]) -> list[Study]:
    """The studies of several `Results`; a front joins the measurements of the same network and batch."""
    studies = []
    for study in (study for one in results for study in one.studies):
        for i, other in enumerate(studies):
            same = (other.network, other.batch_size) == (study.network, study.batch_size)
            front_apart = not (other.front and study.front) and not (other.records and study.records)
            if same and front_apart:
                studies[i] = dataclasses.replace(
                    other,
                    records=other.records or study.records,
                    front=other.front or study.front,
                )
                break
        else:
            studies.append(study)
    return studies


def shown(study: Study) -> list[TextTable]:
    """The tables of a study that a page shows at once."""
    bought = fronts.budgets(study.front) if study.front and study.front.choices else None
    return [sheet for sheet in (compared(study), predicted(study), bought) if sheet is not None]


def folded(study: Study) -> list[TextTable]:
    """The tables of a study that a page shows when they are opened."""
    made = [fronts.table(study.front) if study.front else None]
    made += [plan(name, parts) for name, parts in plans(study)]
    return [sheet for sheet in (*made, losses(study)) if sheet is not None]


def compared(study: Study) -> TextTable | None:
    """Memory and time, a row a case; None if nothing was run."""
    if not study.records:
        return None
    return dataclasses.replace(command_tables.comparison(study.records), title="Memory and time")


def losses(study: Study) -> TextTable | None:
    """The loss of each step, a column a case; None if there are none."""
    ran = [r for r in study.records if r.losses]
    if not ran:
        return None
    rows = [
        [f"step {i}", *(f"{r.losses[i]:.7g}" if i < len(r.losses) else "" for r in ran)]
        for i in range(max(len(r.losses) for r in ran))
    ]
    apart = ["largest relative difference"]
    for record in ran:
        baseline = study_summary.plain(study, record.baseline)
        figure = "" if baseline is None else f"{_apart(record.losses, baseline.losses):.2g}"
        apart.append("baseline" if record is baseline else figure)
    note = (
        "The same weights and data in all cases. Differences are relative to the plain case in the same kind of loop."
    )
    return TextTable("Loss of each step", ("", *(r.name for r in ran)), [*rows, apart], note)


def _apart(losses: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference of two sequences of losses."""
    pairs = [(a, b) for a, b in zip(losses, expected) if not (math.isnan(a) and math.isnan(b))]
    if any(not (math.isfinite(a) and math.isfinite(b)) and a != b for a, b in pairs):
        return math.inf
    return max((abs(a - b) / max(abs(b), 1e-30) for a, b in pairs if a != b), default=0.0)


def predicted(study: Study) -> TextTable | None:
    """Predicted against measured, a row a case; None if nothing was predicted."""
    known = [(r, r.predicted) for r in study.records if r.predicted is not None]
    if not known:
        return None
    cells, units = [], {guess.unit for _, guess in known}
    for record, guess in known:
        measured, apart, overhead = "", "", ""
        needs = record.predicted_needs or 0
        if record.needed_bytes is not None:
            measured = format_bytes(record.needed_bytes)
            apart = format_percent(needs / record.needed_bytes - 1, "+.1f") if record.needed_bytes else ""
            overhead = command_tables.overhead(record, study_summary.plain(study, record.baseline))
        cells.append([
            record.name, format_bytes(needs), measured, apart, format_percent(guess.overhead, "+.0f"),
            overhead, format_bytes(needs - guess.peak_bytes + guess.floor_bytes), guess.floor_node,
            format_bytes(guess.host_bytes) if guess.host_bytes else "",
        ])  # fmt: skip
    heads = (
        "case", "predicted to need", "needs", "prediction off by", "predicted overhead", "measured overhead",
        "floor", "floor set by", "on the host",
    )  # fmt: skip
    if not any(guess.host_bytes for _, guess in known):
        heads, cells = heads[:-1], [row[:-1] for row in cells]
    note = (
        f"Predicted overhead counts {_work(units)}; measured overhead is against plain training in the same kind of "
        "loop."
    )
    return TextTable("Predicted against measured", heads, cells, note)


def _work(units: set[str]) -> str:
    names = {"s": "seconds", "flop": "floating-point operations (flop)"}
    return " or ".join(names.get(unit, unit) for unit in sorted(units))


def plans(study: Study) -> list[tuple[str, tuple[SegmentSummary, ...]]]:
    """Pairs of the names of cases and the plan that they share, by first appearance."""
    found = {}
    for record in study.records:
        if record.parts:
            found.setdefault(record.parts, []).append(record.name)
    return [(" and ".join(names), parts) for parts, names in found.items()]


def plan(name: str, parts: Sequence[SegmentSummary]) -> TextTable:
    """The segments of a plan, a row a segment; parts of a replay stand below theirs."""
    cells = []

    def add(number: str, part: SegmentSummary) -> None:
        sizes = ("" if size is None else format_bytes(size) for size in (part.stored_bytes, part.inside_bytes))
        cells.append([number, f"{part.first} ... {part.last}", str(part.nodes), part.mode, *sizes])
        for i, inner in enumerate(part.inner, start=1):
            add(f"{number}.{i}", inner)

    for i, part in enumerate(parts, start=1):
        add(str(i), part)
    heads = ("segment", "first ... last node", "nodes", "mode", "stored", "inside")
    return TextTable(f"Segments of {name}", heads, cells)
