"""What records look like: in a terminal, in a list, in a notebook, as a picture."""

import dataclasses
import re
import sys

import matplotlib.pyplot
import pytest
from random_graphs import chain

import tfgc
from tfgc import (
    CompiledBuffer,
    CompiledMemory,
    MaxBatch,
    Measurement,
    Plan,
    PlanStatus,
    Reach,
    Segment,
    Status,
    Verdict,
)
from tfgc._simulate import simulator
from tfgc._verify.verdicts import Difference

GRAPH = chain([8] * 200)
PLAN = Plan.from_cuts(GRAPH, range(5, 200, 5), strategy="by <hand>")
INNER = dataclasses.replace(PLAN, model=())
DEEP = Plan((Segment(tuple(f"layer{i}" for i in range(300)), inner=INNER),) * 30, "deep", ("a line",) * 300)
ACTIVATIONS = simulator.predict(GRAPH, PLAN)
PREDICTION = dataclasses.replace(ACTIVATIONS, peak_bytes=ACTIVATIONS.peak_bytes + 1000, fixed_bytes=1000)
MEASURED = Measurement(
    "net<b>", "plain", "graph", 8, peak_bytes=4_000_000, resident_bytes=1_000_000, step_seconds=0.5,
    timeline=((0.0, 0.0), (0.1, 4_000_000.0), (0.4, 0.0)), losses=(0.5,) * 100, machine={"cpus": 2},
)  # fmt: skip
DIFFERENCES = tuple(Difference("graph", 0, "gradient", f"<w{i}>", "", 0.1, 0.01) for i in range(30))
VERDICT = Verdict(
    False, ("graph",), 2, "mse", {"gradient": 30}, DIFFERENCES[0], DIFFERENCES, DIFFERENCES, ("draws",) * 9, "a note",
)  # fmt: skip
REACH = Reach("plain", 9, 5_000_000, 9, records=(MEASURED,) * 50)
TABLES = {
    "plan": PLAN, "deep plan": DEEP, "prediction": PREDICTION, "measurement": MEASURED, "verdict": VERDICT,
    "largest batch": MaxBatch("<net>", 5_000_000, 1, REACH, REACH, PLAN),
    "status": Status("<net>", True, tuple(PlanStatus(PLAN, f"layer{i}", predicted_bytes=5) for i in range(60))),
}  # fmt: skip
OTHERS = {
    "failed": Measurement("net", "sqrt", "xla", 8, status="oom", detail="ran out of memory"),
    "segment": DEEP.segments[0], "graph": GRAPH, "node": GRAPH.nodes[0], "cost": GRAPH.costs[3], "reach": REACH,
    "outlook": tfgc.Outlook(1, "node", "forward", 2, 1, "node", 0.1, 0.0),
    "compiled": CompiledMemory("t4", "T4", 9, 8, 7, 6, (CompiledBuffer(5, "layer", "operation"),) * 10, 1.0, "XLA"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*TABLES, *OTHERS])
def test_nothing_fills_the_screen(name):
    record = {**TABLES, **OTHERS}[name]
    lines = str(record).split("\n")
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 400
    assert len(repr(record)) <= 400
    assert "\n" not in repr([record] * 3)
    if name in TABLES:
        page = record._repr_html_()
        assert 1 < page.count("<tr>") <= 20
        assert not re.search(r"<(?!/?(table|caption|tr|th|td|br|p)\b)", page)  # what stands in it is escaped


def test_what_is_printed_says_what_a_step_needs_and_of_how_much():
    plan = tfgc.strategies.apply("sqrt", chain([8] * 9))
    needs = f"needs {plan.outlook.peak_bytes} B of {plan.outlook.plain_bytes} B, weights"
    assert needs in str(plan)
    assert needs in repr(plan)
    assert str(DEEP).endswith("plan.explain() has all")
    assert str(PREDICTION).startswith(f"Prediction of one step: needs {PREDICTION.needed_bytes / 1e3:.3g} kB (")
    assert "plain-graph: needs 5 MB" in str(MEASURED)
    assert repr(OTHERS["segment"]).startswith("Segment(nodes=('layer0', 'layer1', 'layer2', ...), inner=<Plan by")


def drawn(axes):
    """The points of the lines of a picture, which can be written."""
    axes.figure.canvas.draw()
    matplotlib.pyplot.close(axes.figure)
    return [list(map(tuple, line.get_xydata())) for line in axes.lines]


def test_a_plan_is_drawn_as_what_its_segments_store_forward_and_backward():
    sizes = [(("a", "b"), "recompute", 10_000, 50_000), (("c",), "keep", 20_000, 20_000)]
    segments = [Segment(nodes, mode, stored_bytes=stored, inside_bytes=inside) for nodes, mode, stored, inside in sizes]
    outlook = tfgc.Outlook(61_000, "a", "backward", 71_000, 1, "a", 0.1, 0.0)
    axes = Plan(tuple(segments), "$by", (), batch_size=2, outlook=outlook).plot()
    plan, plain, peak = drawn(axes)
    assert plan == [(0, 0), (2, 10), (3, 30), (4, 10), (5, 60), (6, 0)]
    assert plain == [(0, 0), (2, 50), (3, 70), (4, 50), (6, 0)]
    assert peak[0][1] == 61
    assert "for a batch of 2" in axes.get_title()
    assert "needs 61 kB of 71 kB, weights" in axes.get_title()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("place in the step (nodes, forward then backward)", "memory (kB)")
    with pytest.raises(tfgc.TfgcError, match="sizes are unknown"):
        DEEP.plot()


def test_predictions_and_measurements_are_drawn_over_the_step():
    axes = PREDICTION.plot()
    assert max(count for _, count in drawn(axes)[0]) == PREDICTION.peak_bytes / 1e3
    assert f"needs {PREDICTION.needed_bytes / 1e3:.3g} kB" in axes.get_title()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("work done in one step (kflop)", "memory (kB)")
    axes = MEASURED.plot()
    assert drawn(axes)[0] == [(0, 1), (100, 5), (400, 1)]
    assert axes.get_title() == "net<b>, batch 8, plain-graph: needs 5 MB"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time in one step (ms)", "memory (MB)")
    with pytest.raises(tfgc.TfgcError, match="no timeline"):
        OTHERS["failed"].plot()


def test_without_matplotlib_one_sentence_says_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(tfgc.TfgcError, match=r'^a plot needs matplotlib: pip install "tfgc\[plot\]"$'):
        MEASURED.plot()
