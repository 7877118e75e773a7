"""How the number of segments changes memory and time, where activations dominate and where weights do.

A forum report asked why more segments saved nothing in PyTorch's `checkpoint_sequential`; its weights dominated.
"""

from tfgc._records.measurement import Measurement, Results, Study
from tfgc._records.table import TextTable
from tfgc._suites import _figures, _rows
from tfgc._units import format_bytes, format_percent

COUNTS = (2, 3, 5, 8, 12)
# At 32 pixels VGG16 has 33 million weights and little else.
_NETWORKS = (("sample_cnn", 16, None), ("vgg16", 16, 32))
_HEADS = ("network, batch", "segments", "whole step", "of it weights and optimizer", "cut-off", "time of plain")
_LEGEND = (
    "Equal numbers of nodes in each segment, in a Python loop as in the report, against plain-eager. whole step: the "
    "allocator's peak, what is resident between steps included. cut-off: of what is above that, weights' "
    "gradients included. "
    "In the report (PyTorch) the peak was {reported}."
)


def rows(scale: float) -> list[_rows.SuiteRow]:
    """A network of large activations, and one of large weights."""
    made = []
    for network, batch_size, image_size in _NETWORKS:
        names = ["plain-eager", *(f"uniform:{count}-compiled" for count in COUNTS)]
        cases = _rows.cases(network, _rows.scaled(batch_size, scale), *names, image_size=image_size)
        made.append(_rows.SuiteRow(cases))
    return made


def sheets(results: Results) -> list[TextTable]:
    """A row for each number of segments, and the answer to the report in sentences."""
    table, answers = [], []
    for study in results.studies:
        plain = study.record("plain-eager")
        table += [_row(study, record, plain) for record in study.records]
        ran = [r for r in study.records if r.status == "ok"]
        if plain is not None and plain in ran and len(ran) > 1:
            answers.append(_answer(study, plain, [r for r in ran if r is not plain]))
    reported = _rows.published("torch_segments_sweep")
    least, most = (which(row["peak_bytes"] for row in reported) for which in (min, max))
    least, most = format_bytes(least), format_bytes(most)
    span = f"about {least}" if least == most else f"between {least} and {most}"
    legend = _LEGEND.format(reported=f"{span} from 0 to {reported[-1]['segments']} segments")
    return [_figures.table("By number of segments", _HEADS, table, legend, summary=" ".join(answers))]


def _row(study: Study, record: Measurement, plain: Measurement | None) -> tuple[str, ...]:
    head = _figures.heading(study), "plain" if record is plain else _count(record)
    if record.status == "predicted" and record.predicted is not None:
        fixed = record.predicted.fixed_bytes or 0
        whole = fixed + record.predicted.peak_bytes
        return *head, f"~ {format_bytes(whole)}", format_percent(fixed / whole, ".0f"), "", ""
    if record.status != "ok":
        return *head, record.status, "", "", ""
    cut_off, overhead = record.against(plain)
    resident, whole = record.resident_bytes or 0, _whole_step(record)
    times = "" if record is plain or overhead is None else _figures.times(1 + overhead)
    share = format_percent(resident / whole, ".0f")
    return *head, format_bytes(whole), share, "" if record is plain else format_percent(cut_off), times


def _count(record: Measurement) -> str:
    """How many segments a case has; how many it was to have, such as `uniform(12)`, where it has no plan."""
    return str(len(record.parts)) if record.parts else record.case.partition("(")[2].rstrip(")")


def _whole_step(record: Measurement) -> int:
    """The peak of the whole step, what is resident between steps included."""
    return (record.resident_bytes or 0) + _above(record)


def _above(record: Measurement) -> int:
    return record.peak_bytes or 0


def _answer(study: Study, plain: Measurement, planned: list[Measurement]) -> str:
    """What the figures say of one network."""
    best = min(planned, key=_above)
    most = planned[-1]
    before, after = _whole_step(plain), _whole_step(best)
    share = format_percent((plain.resident_bytes or 0) / before, ".0f")
    if after > 0.95 * before:
        return (
            f"In {study.network} the whole step's peak stays at about {format_bytes(before)}, whatever the number of "
            f"segments: weights and optimizer are {share} of it, the weights' gradients add to that, and segments save "
            "neither."
        )
    back = ""
    if most is not best and _above(most) > 1.02 * _above(best):
        back = f"; {len(most.parts)} segments need more again, since every cut is stored"
    return (
        f"In {study.network} the whole step's peak falls from {format_bytes(before)} to {format_bytes(after)} with "
        f"{len(best.parts)} segments{back}. Weights and optimizer are {share} of the plain peak there."
    )
