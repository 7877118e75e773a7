"""tfgc beside other ways to recompute: `tf.recompute_grad`, `keras.RematScope`, PyTorch's checkpoint_sequential.

Each trains the same network from the same seed; what its first step does to weights and states is compared with plain.
"""

from tfgc import _suites
from tfgc._records.job import Case
from tfgc._units import format_bytes, format_seconds

# Where nothing is random and no state moves; statistics; Dropout.
_NETWORKS = (("sample_cnn", 8, 128), ("resnet50", 16, 112), ("transformer_encoder", 4, None))
_PEERS = (
    "recompute_grad",
    "RematScope full",
    "RematScope activations",
    "RematScope larger_than",
    "RematScope list_of_layers",
)
_TORCH = "sample_cnn"
_HEADS = ("network, batch", "case", "peak", "cut-off", "step", "time of plain", "first step's update")
_LEGEND = (
    "cut-off and time against the plain step of the same mode (predicted, behind ~, against plain-graph); in mode "
    "torch against plain PyTorch (allocated bytes as its profiler counts them). recompute_grad: split by hand into "
    "eight parts, each but the last under tf.recompute_grad. RematScope: built under keras.RematScope in that mode; "
    "larger_than at 2**20 elements, list_of_layers with all that have weights. wrong: what the first step adds to the "
    "weights (gradients), or to statistics and seeds (states), differs from plain by more than 0.1 % and twice "
    "what plain steps differ by between eager and graph, or with weights that are one rounding off."
)


def rows(scale):
    """Three networks, each in every way."""
    made = []
    for network, batch, image_size in _NETWORKS:
        batch_size = _suites.scaled(batch, scale)
        names = ("plain-graph", "plain-eager", "optimal-graph", "optimal-compiled")
        cases = _suites.cases(network, batch_size, *names, image_size=image_size, checked=True)
        peers = [(peer, mode, {"checked": True, "peer": peer}) for peer in _PEERS for mode in ("graph", "eager")]
        if network == _TORCH:
            peers += [
                ("plain", "torch", {"peer": "torch"}),
                ("checkpoint_sequential", "torch", {"peer": "torch", "options": {"checkpoint": True}}),
            ]
        build = (network, image_size)
        cases += tuple(Case(network, build, peer, mode, batch_size, **how) for peer, mode, how in peers)
        made.append(_suites.SuiteRow(cases))
    return made


def sheets(results):
    """A row for each case; failures and wrong results are told as such."""
    table = tuple(_row(study, record) for study in results.studies for record in study.records)
    return [_suites.TextTable("Beside the other ways to recompute", _HEADS, table, _LEGEND)]


def _row(study, record):
    network = f"{study.network}, {study.batch_size}"
    if record.status == "predicted":
        foreseen = _suites.shares(study, record.name, "predicted")
        if foreseen is None:
            return network, record.name, "", "", "", "", "not predicted"
        peak, cut_off, times = format_bytes(record.predicted.peak_bytes), 1 - foreseen[0], f"~ x {foreseen[1]:.2f}"
        return network, record.name, f"~ {peak}", f"~ {_suites.percent(cut_off, 1)}", "", times, ""
    if record.status != "ok":
        return network, record.name, record.status, "", "", "", record.detail
    plain = _suites.record(study, record.baseline)
    cut_off, overhead = (None, None) if record is plain else record.against(plain)
    said = f"wrong {', '.join(record.wrong)}" if record.wrong else "" if record.mode == "torch" else "as plain"
    times = "" if overhead is None else f"x {1 + overhead:.2f}"
    return (
        network, record.name, format_bytes(record.peak_bytes), _suites.percent(cut_off, 1),
        format_seconds(record.step_seconds), times, said,
    )  # fmt: skip
