"""Inception v4 at batch 32 beside a TF1 study: plain, recomputed, swapped to the host, and a hybrid of both."""

from tfgc import _suites

_HEADS = ("system", "activations' peak of plain", "time of plain", "predicted: peak, work")
_LEGEND = (
    "Shares of the plain step's: of the study's own plain case on a GPU, and here of plain-graph at batch {batch}. "
    "Swapping and the hybrid are not built in tfgc yet."
)


def rows(scale):
    """One network; its published share of activations is also planned for."""
    table = {row["system"]: row for row in _suites.published("tf1_inception_v4")}
    plain = table.pop("plain")
    published = {}
    for system, row in table.items():
        published[f"{system}_share"] = row["activation_mb"] / plain["activation_mb"]
        published[f"{system}_times"] = row["step_s"] / plain["step_s"]
    cases = _suites.cases(
        "inception_v4", _suites.scaled(plain["batch"], scale), "plain-graph", "optimal-graph", "published-graph",
        shares={"published": published["recompute_share"]},
    )  # fmt: skip
    return [_suites.SuiteRow(cases, published, front=True)]


def sheets(results):
    """A row for each system of the study, then tfgc's."""
    made = []
    for study in results.studies:
        systems = [key.removesuffix("_share") for key in study.published if key.endswith("_share")]
        rows = [
            (f"study: {system}", _suites.percent(study.published[f"{system}_share"], 1),
             f"x {study.published[f'{system}_times']:.2f}", "")
            for system in systems
        ]  # fmt: skip
        names = {"optimal-graph": "tfgc: optimal", "published-graph": "tfgc: at the study's recompute share"}
        for name, label in names.items():
            measured, predicted = _suites.shares(study, name, "ok"), _suites.shares(study, name, "predicted")
            rows.append(
                (
                    label,
                    _suites.percent(measured and measured[0], 1),
                    f"x {measured[1]:.2f}" if measured else "",
                    f"{_suites.percent(predicted[0], 1)}, x {predicted[1]:.2f}" if predicted else "",
                )
            )
        made.append(_suites.TextTable("Inception v4", _HEADS, tuple(rows), _LEGEND.format(batch=study.batch_size)))
    return made
