"""tfgc compared with other ways to recompute: `tf.recompute_grad`, `keras.RematScope`, PyTorch's checkpoint_sequential.

Each trains the same network from the same seed; what its first step does to weights and states is compared with plain.
"""

from tfgc._records.job import Case
from tfgc._records.measurement import Measurement, Results, Study
from tfgc._records.table import TextTable
from tfgc._suites import _figures, _rows
from tfgc._units import format_bytes, format_percent, format_seconds

# Where nothing is random and no state moves; statistics; Dropout.
_NETWORKS = (("sample_cnn", 8, 128), ("resnet50", 16, 112), ("transformer_encoder", 4, None))
_MODES = ("full", "activations", "larger_than", "list_of_layers")
_PEERS = ("recompute_grad", *(f"RematScope {mode}" for mode in _MODES))
_TORCH = "sample_cnn"
_HEADS = ("network, batch", "case", "peak", "cut-off", "step", "time of plain", "first step's update")
_LEGEND = (
    "cut-off and time against the plain step in the same kind of loop (predicted, behind ~, against plain-graph); in "
    "mode torch against plain PyTorch (allocated bytes as its profiler counts them). recompute_grad: split by hand "
    "into eight parts, each but the last under tf.recompute_grad. RematScope: built under keras.RematScope in that "
    "mode; larger_than at 2**20 elements, list_of_layers with all that have weights. wrong: what the first step adds "
    "to the weights (gradients), or to statistics and seeds (states), differs from plain by more than 0.1 % and twice "
    "what plain steps differ by between eager and graph, or with weights that are one rounding off."
)


def rows(scale: float) -> list[_rows.SuiteRow]:
    """Three networks, each in every way."""
    made = []
    for network, batch, image_size in _NETWORKS:
        batch_size = _rows.scaled(batch, scale)
        names = ("plain-graph", "plain-eager", "optimal-graph", "optimal-compiled")
        cases = _rows.cases(network, batch_size, *names, image_size=image_size, compare_first_update=True)
        peers: list[tuple[str, str, dict]] = [
            (peer, mode, {"compare_first_update": True, "peer": peer}) for peer in _PEERS for mode in ("graph", "eager")
        ]
        if network == _TORCH:
            peers += [
                ("plain", "torch", {"peer": "torch"}),
                ("checkpoint_sequential", "torch", {"peer": "torch", "options": {"checkpoint": True}}),
            ]
        build = (network, image_size)
        cases += tuple(Case(network, build, peer, mode, batch_size, **how) for peer, mode, how in peers)
        made.append(_rows.SuiteRow(cases))
    return made


def sheets(results: Results) -> list[TextTable]:
    """A row for each case; failures and wrong results stand as such."""
    rows = [_row(study, record) for study in results.studies for record in study.records]
    return [_figures.table("Compared with other ways to recompute", _HEADS, rows, _LEGEND, _summary(results))]


def _summary(results: Results) -> str:
    """How many cases of each way fail, or train otherwise than plain."""
    ways: dict[str, list[Measurement]] = {}
    for record in (record for study in results.studies for record in study.records):
        if record.case != "plain" and record.mode != "torch" and record.status != "predicted":
            ways.setdefault(record.case, []).append(record)
    sentences = []
    for way, records in ways.items():
        failed, wrong = sum(r.status != "ok" for r in records), sum(bool(r.wrong) for r in records)
        faults = [f"{count} {what}" for count, what in ((failed, "failed"), (wrong, "wrong")) if count]
        sentences.append(f"{way}: {' and '.join(faults) or 'none wrong'} of {len(records)} cases.")
    return " ".join(sentences)


def _row(study: Study, record: Measurement) -> tuple[str, ...]:
    head = _figures.heading(study), record.name
    if record.status == "predicted":
        predicted = _figures.predicted(study, record.name)
        if predicted is None or record.predicted is None:
            return *head, "", "", "", "", "not predicted"
        peak, cut_off = format_bytes(record.predicted.peak_bytes), format_percent(1 - predicted[0])
        return *head, f"~ {peak}", f"~ {cut_off}", "", f"~ {_figures.times(predicted[1])}", ""
    if record.status != "ok" or record.peak_bytes is None or record.step_seconds is None:
        return *head, record.status, "", "", "", record.detail
    plain = study.record(record.baseline)
    cut_off, overhead = (None, None) if record is plain else record.against(plain)
    result = f"wrong {', '.join(record.wrong)}" if record.wrong else "" if record.mode == "torch" else "as plain"
    return (
        *head, format_bytes(record.peak_bytes), format_percent(cut_off), format_seconds(record.step_seconds),
        _figures.times(None if overhead is None else 1 + overhead), result,
    )  # fmt: skip
