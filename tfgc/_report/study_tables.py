"""What a report tells of a study in words and tables, for HTML and Markdown alike. No TensorFlow."""

import dataclasses

from tfgc._records.measurement import Results
from tfgc._records.table import TextTable
from tfgc._report import comparison, fronts
from tfgc._units import format_bytes, format_seconds

_HEADS = (
    "case", "peak", "cut-off against plain-eager", "cut-off against plain-graph", "process peak", "step",
    "overhead against plain-eager", "overhead against plain-graph", "result",
)  # fmt: skip
_SUFFIXES = {"mb": "MB", "mib": "MiB", "gb": "GB", "kb": "kB", "s": "s", "seconds": "s", "ms": "ms", "pct": "%"}
WORDS = (
    ("peak", "Most bytes at once in a training step, above what stays between steps (weights, optimizer, data): "
     "the median over the counted steps of what TensorFlow's allocator reports. The peak of a planned front is that "
     "of the whole step, weights and optimizer slots included."),
    ("cut-off", "The part of a baseline's peak that is saved: 1 - peak / baseline's peak, in %. Weights and optimizer "
     "are left out of both."),
    ("overhead", "The time of a step that comes on top of a baseline's: time / baseline's time - 1, in %. Where it is "
     "predicted, it is counted in the work of the plain step: seconds measured layer by layer, or floating-point "
     "operations (flop)."),
    ("plain-eager", "The baseline without recomputation, op by op under a GradientTape."),
    ("plain-graph", "The baseline without recomputation, the step in a tf.function."),
    ("eager, compiled, graph", "How a step runs: op by op; in a Python loop that calls each segment as a compiled "
     "function; as a whole in a tf.function."),
    ("floor", "What one node needs by itself, as the planner counts: no plan is predicted below it. And that node."),
    ("stored, inside", "What a segment keeps in memory from its forward to its backward pass, and what it would keep "
     "if none of it were recomputed."),
    ("result", "ok; oom: it ran out of memory; failed; wrong, with what is not as in plain training."),
    ("units", "1 kB = 1,000 bytes, 1 MB = 1,000 kB, 1 GB = 1,000 MB; s: seconds, ms: thousandths of them. "
     "A loss has no unit; nodes, segments, steps and samples of a batch are counted."),
)  # fmt: skip


def joined(results):
    """The studies of one `Results` or of several; a front joins the measurements of the same network and batch."""
    listed = [results] if isinstance(results, Results) else list(results)
    studies = []
    for study in (study for one in listed for study in one.studies):
        for i, other in enumerate(studies):
            same = (other.network, other.batch_size) == (study.network, study.batch_size)
            front_apart = not (other.front and study.front) and not (other.records and study.records)
            if same and front_apart:
                studies[i] = dataclasses.replace(
                    other,
                    records=other.records or study.records,
                    front=other.front or study.front,
                    published={**other.published, **study.published},
                    found={**other.found, **study.found},
                )
                break
        else:
            studies.append(study)
    return studies


def heading(study):
    """Such as `unet, batch 16`."""
    return f"{study.network}, batch {study.batch_size}" if study.network else "no network"


def best(study):
    """The recomputed case of least peak that trains rightly; None if there is none."""
    right = [r for r in study.records if r.status == "ok" and not r.wrong and r.peak_bytes is not None]
    own = [r for r in right if r.case != "plain" and r.mode != "torch"]
    return min(own, key=lambda r: r.peak_bytes, default=None)


def summary(study):
    """What came out, in a sentence or a few."""
    least = best(study)
    if least is not None:
        told = [f"The least peak is that of {least.name}: {format_bytes(least.peak_bytes)}."]
        told += [_against(study, least, name) for name in ("plain-graph", "plain-eager")]
        return " ".join(filter(None, told))
    measured = [r for r in study.records if r.status == "ok"]
    if any(r.case != "plain" for r in measured):
        return "Every recomputed case that ran gives something else than plain training."
    if measured:
        return "Only plain training was measured: there is nothing to compare it with."
    foreseen = [r for r in study.records if r.predicted is not None]
    if foreseen:
        least = min(foreseen, key=lambda r: r.predicted.peak_bytes)
        return (
            f"Nothing was measured. The least peak predicted is that of {least.name}: "
            f"{format_bytes(least.predicted.peak_bytes)}."
        )
    if study.records:
        return f"None of the {len(study.records)} cases came to an end."
    if study.front is not None and study.front.points:
        least, most = (pick(study.front.points, key=lambda p: p.peak_bytes) for pick in (min, max))
        return (
            f"Predicted, not measured: a step can do with {format_bytes(least.peak_bytes)}, weights included, at "
            f"{least.overhead * 100:.1f} % more work. Plain training takes {format_bytes(most.peak_bytes)}."
        )
    return "There are no measurements."


def plain(study, name):
    """The plain case of a name such as `plain-graph`, if it was measured."""
    return next((r for r in study.records if r.name == name and r.status == "ok"), None)


def _against(study, record, name):
    baseline = plain(study, name)
    if baseline is None:
        tried = [r.status for r in study.records if r.name == name and r.status in ("oom", "failed")]
        ends = {"oom": "ran out of memory", "failed": "failed"}
        return f"There is no baseline {name}: it {ends[tried[0]]}." if tried else ""
    cut_off, overhead = record.against(baseline)
    told = []
    if cut_off is not None:
        words = (
            f"saves {cut_off * 100:.1f} % of the peak" if cut_off >= 0 else f"takes {-cut_off * 100:.1f} % more memory"
        )
        told.append(f"{words} ({format_bytes(baseline.peak_bytes)})")
    if overhead is not None:
        told.append(f"is {abs(overhead) * 100:.0f} % {'slower' if overhead >= 0 else 'faster'}")
    return f"Against {baseline.name} it {' and '.join(told)}." if told else ""


def problems(study):
    """Pairs of a case and what is wrong with it."""
    told = []
    for record in study.records:
        if record.wrong:
            told.append((record.name, _result(record)))
        elif record.status in ("oom", "failed"):
            told.append((record.name, f"{record.status}: {record.detail}" if record.detail else record.status))
    return told


def compared(study):
    """Memory and time, a row a case; None if nothing was run."""
    ran = [r for r in study.records if r.status != "predicted"]
    if not ran:
        return None
    cells = [
        [row[0], row[1] if r.status == "ok" else "", *row[2:], _result(r)] for r, row in zip(ran, comparison.rows(ran))
    ]
    return TextTable("Memory and time", _HEADS, cells)


def _result(record):
    return f"wrong {', '.join(record.wrong)}" if record.wrong else record.status


def losses(study):
    """The loss of each step, a row a case; None if there are none."""
    ran = [r for r in study.records if r.losses]
    if not ran:
        return None
    steps = range(max(len(r.losses) for r in ran))
    heads = ("case", *(f"step {i}" for i in steps), "largest relative difference")
    cells = []
    for record in ran:
        figures = [f"{record.losses[i]:.7g}" if i < len(record.losses) else "" for i in steps]
        baseline = plain(study, record.baseline)
        apart = "baseline" if record is baseline else ""
        if baseline is not None and record is not baseline:
            apart = f"{comparison.apart(record.losses, baseline.losses):.2g}"
        cells.append([record.name, *figures, apart])
    note = (
        "The same weights and data in all cases but PyTorch's. The difference is to the plain case in the same kind of "
        "loop; no units."
    )
    return TextTable("Loss of each step", heads, cells, note)


def foreseen(study):
    """Predicted against measured, a row a case; None if nothing was predicted."""
    told = [r for r in study.records if r.predicted is not None]
    if not told:
        return None
    cells, units = [], {r.predicted.unit for r in told}
    for record in told:
        guess, measured, apart, overhead = record.predicted, "", "", None
        if record.peak_bytes is not None:
            measured = format_bytes(record.peak_bytes)
            apart = f"{(guess.peak_bytes / record.peak_bytes - 1) * 100:+.1f} %" if record.peak_bytes else ""
            overhead = record.against(plain(study, record.baseline))[1]
        cells.append([
            record.name, format_bytes(guess.peak_bytes), measured, apart, f"{guess.overhead * 100:+.0f} %",
            "" if overhead is None else f"{overhead * 100:+.0f} %", format_bytes(guess.floor_bytes), guess.floor_node,
        ])  # fmt: skip
    heads = (
        "case", "predicted peak", "measured peak", "prediction off by", "predicted overhead", "measured overhead",
        "floor", "floor set by",
    )  # fmt: skip
    note = (
        f"Predicted overhead counts {_work(units)}; measured overhead is against plain training in the same kind of "
        "loop."
    )
    return TextTable("Predicted against measured", heads, cells, note)


def _work(units):
    names = {"s": "seconds", "flop": "floating-point operations (flop)"}
    return " or ".join(names.get(unit, unit) for unit in sorted(units))


def front(study):
    """The least work for each peak, a row a plan; None if it was not asked for."""
    found = study.front
    if found is None:
        return None
    rows = [
        [row[0].replace("<- ", "bought by ") or f"plan {i}", *row[1:]]
        for i, row in enumerate(fronts.rows(found), start=1)
    ]
    note = (
        f"Predicted for the whole step: {format_bytes(found.fixed_bytes)} of weights and optimizer slots are in peak "
        f"and allocated. Overhead counts {_work({found.unit})}. No plan goes below "
        f"{format_bytes(found.floor_bytes)}, set by {found.floor_node}."
    )
    return TextTable("Least overhead for each peak", fronts.HEADS, rows, note)


def choices(study):
    """What each budget buys; None if no budget was named."""
    if study.front is None or not study.front.choices:
        return None
    sheet = fronts.budgets(study.front)
    return TextTable("What each budget buys", sheet.heads, sheet.rows, sheet.caption)


def plans(study):
    """Pairs of the names of cases and the plan that they share, by first appearance."""
    found = {}
    for record in study.records:
        if record.parts:
            found.setdefault(record.parts, []).append(record.name)
    return [(" and ".join(names), parts) for parts, names in found.items()]


def plan(name, parts):
    """The segments of a plan, a row a segment; parts of a replay stand below theirs."""
    cells = []

    def add(number, part):
        sizes = ("" if size is None else format_bytes(size) for size in (part.stored_bytes, part.inside_bytes))
        cells.append([number, f"{part.first} ... {part.last}", str(part.nodes), part.mode, *sizes])
        for i, inner in enumerate(part.inner, start=1):
            add(f"{number}.{i}", inner)

    for i, part in enumerate(parts, start=1):
        add(str(i), part)
    return TextTable(
        f"Segments of {name}", ("segment", "first ... last node", "nodes", "mode", "stored", "inside"), cells
    )


def published(study):
    """Figures of others; None if there are none."""
    if not study.published:
        return None
    cells = [_figure(str(name), value) for name, value in study.published.items()]
    return TextTable("Published by others", ("figure", "value"), cells, "On other machines: compare ratios, not times.")


def _figure(name, value):
    """A figure's name without the unit at its end, and its value with it."""
    words, _, suffix = name.rpartition("_")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return [name.replace("_", " "), str(value)]
    if suffix == "bytes":
        return [words.replace("_", " "), format_bytes(value)]
    if suffix in _SUFFIXES:
        return [words.replace("_", " "), f"{value:,g} {_SUFFIXES[suffix]}"]
    if name in ("cut_off", "overhead"):
        return [name.replace("_", "-"), f"{value * 100:.1f} %"]
    return [name.replace("_", " "), f"{value:,g}"]


def machines(studies):
    """What the measurements ran on, a line each."""
    found = {}
    for record in (record for study in studies for record in study.records):
        facts = [f"{name} {value}" for name, value in record.machine.items()]
        told = "; ".join(filter(None, [record.device and f"bytes counted on {record.device}", ", ".join(facts)]))
        found.setdefault(told, None)
    return [told for told in found if told]


def overview(studies):
    """The best case of each study, a row a study."""
    cells = []
    for study in studies:
        least = best(study)
        row = [heading(study), *[""] * 7]
        if least is not None:
            graph, eager = (least.against(plain(study, f"plain-{mode}")) for mode in ("graph", "eager"))
            shares = [
                "" if share is None else f"{share * 100:{form}} %"
                for share, form in zip((*graph, *eager), (".1f", "+.0f", ".1f", "+.0f"))
            ]
            seconds = "" if least.step_seconds is None else format_seconds(least.step_seconds)
            row[1:] = [least.name, format_bytes(least.peak_bytes), seconds, *shares]
        cells.append(row)
    heads = ("network", "least peak", "peak", "step", *(f"{what} against plain-{mode}" for mode in ("graph", "eager")
             for what in ("cut-off", "overhead")))  # fmt: skip
    return TextTable("Networks", heads, cells)
