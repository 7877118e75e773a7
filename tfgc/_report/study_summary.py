"""What a report says of a study in sentences, and the glossary. No TensorFlow."""

from collections.abc import Sequence

from tfgc._records.measurement import Measurement, Study
from tfgc._report import command_tables
from tfgc._units import format_bytes, format_percent

GLOSSARY = (
    ("needs, peak", "Most bytes at once in a training step, all that stays between steps (weights, optimizer, data) "
     "included: the median over the counted steps of what TensorFlow's allocator reports."),
    ("saved", "The part of what a baseline needs that is saved: 1 - needs / baseline's needs, in %."),
    ("overhead", "The extra time of a step: time / baseline's time - 1, in %, the median over steps in turn, and its "
     "spread, which holds the true median 9 times in 10. Predictions count work instead: seconds "
     "of each layer in a profiled step, or floating-point operations (flop)."),
    ("plain-eager", "The baseline without recomputation, op by op under a GradientTape."),
    ("plain-graph", "The baseline without recomputation, the step in a tf.function."),
    ("plain-xla", "The baseline without recomputation, the step compiled by XLA."),
    ("eager, compiled, graph, xla", "How a step runs: op by op; in a Python loop that calls each segment as a compiled "
     "function; as a whole in a tf.function; as a whole, compiled by XLA."),
    ("floor", "What one node alone needs, as the planner counts it, and that node. No plan is predicted to need less."),
    ("stored, inside", "What a segment keeps in memory from its forward to its backward pass, and what it would keep "
     "if none of it were recomputed."),
    ("oom", "It ran out of memory."),
    ("units", "1 kB = 1,000 bytes, 1 MB = 1,000 kB, 1 GB = 1,000 MB; s: seconds, ms: thousandths of them. "
     "A loss has no unit; nodes, segments, steps and samples of a batch are counted."),
)  # fmt: skip


def heading(study: Study) -> str:
    """Such as `unet, batch 16`."""
    return f"{study.network}, batch {study.batch_size}" if study.network else "no network"


def best(study: Study) -> Measurement | None:
    """The recomputed case that needs least; None if there is none."""
    own = [r for r in study.records if r.status == "ok" and r.case != "plain" and r.peak_bytes is not None]
    return min(own, key=lambda r: r.needed_bytes or 0, default=None)


def summary(study: Study) -> str:
    """The outcome, in a few sentences."""
    least = best(study)
    if least is not None:
        sentences = [f"The least is needed by {least.name}: {format_bytes(least.needed_bytes or 0)}."]
        names = ("plain-xla", "plain-graph", "plain-eager")[least.mode != "xla" :]
        sentences += [_against(study, least, name) for name in names]
        return " ".join(filter(None, sentences))
    if any(r.status == "ok" for r in study.records):
        return "Only plain training was measured: there is nothing to compare it with."
    if study.records:
        return f"None of the {len(study.records)} cases finished."
    if study.front is not None and study.front.points:
        lowest, highest = (pick(study.front.points, key=lambda p: p.peak_bytes) for pick in (min, max))
        return (
            f"Predicted, not measured: a step can do with {format_bytes(lowest.peak_bytes)}, weights included, at "
            f"{format_percent(lowest.overhead)} more work. Plain training takes {format_bytes(highest.peak_bytes)}."
        )
    return "There are no measurements."


def plain(study: Study, name: str) -> Measurement | None:
    """The plain case of a name such as `plain-graph`, if it was measured."""
    return next((r for r in study.records if r.name == name and r.status == "ok"), None)


def _against(study: Study, record: Measurement, name: str) -> str:
    """How a case compares with a plain one, in a sentence."""
    baseline = plain(study, name)
    if baseline is None:
        return ""
    facts = {"saved": format_percent(record.saved(baseline)), "overhead": command_tables.overhead(record, baseline)}
    words = ", ".join(f"{name} {fact}" for name, fact in facts.items() if fact)
    return f"Against {name} ({format_bytes(baseline.needed_bytes or 0)}): {words}." if words else ""


def problems(study: Study) -> list[tuple[str, str]]:
    """Pairs of a case and what went wrong with it."""
    failed = [record for record in study.records if record.status in ("oom", "failed")]
    return [(record.name, ": ".join(filter(None, [record.status, record.detail]))) for record in failed]


def machines(studies: Sequence[Study]) -> list[str]:
    """What the measurements ran on, a line each."""
    found = {}
    for record in (record for study in studies for record in study.records):
        facts = ", ".join(f"{name} {value}" for name, value in record.machine.items())
        found["; ".join(filter(None, [record.device and f"bytes counted on {record.device}", facts]))] = None
    return [line for line in found if line]
