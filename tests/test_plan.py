"""Graphs, plans and strategies as plain data: no TensorFlow in here."""

import json
import subprocess
import sys

import pytest
from random_graphs import chain, random_graph

from tfgc import Graph, Plan, PlanMismatchError, Segment, TfgcError, strategies
from tfgc._core.graph import Node, Ref, Spec
from tfgc._errors import OptionError


def test_cuts_and_bytes_by_hand():
    #  x(2) -> a(8) -> b(4) -> d(1);  a -> d;  x -> c(3, output)
    graph = Graph(
        (
            Node("a", (Ref("x"),), (Spec((None, 8)),)),
            Node("b", (Ref("a"),), (Spec((None, 4), "float16"),)),
            Node("c", (Ref("x"),), (Spec((None, 3), "bool"), Spec((5,), "int64"))),
            Node("d", (Ref("b"), Ref("a"), Ref("c", 0)), (Spec((None, 1)),)),
        ),
        {"x": Spec((None, 2))},
        (Ref("d"), Ref("c", 0)),
        batch_size=10,
    )
    assert graph.node_bytes == (320, 80, 30 + 40, 40)
    assert graph.cut(2) == (Ref("x"), Ref("a"), Ref("b"))
    assert graph.cut_bytes == (80, 80 + 320, 80 + 320 + 80, 320 + 80 + 30, 30 + 40)


@pytest.mark.parametrize("seed", range(20))
def test_cut_bytes_are_the_bytes_of_the_cut(seed):
    graph = random_graph(seed)
    for p in range(len(graph) + 1):
        assert graph.cut_bytes[p] == sum(graph.bytes(ref) for ref in graph.cut(p))


def test_hand_built_graph_that_cannot_be():
    with pytest.raises(TfgcError, match="two nodes are called 'a'"):
        Graph((Node("a", (), ()), Node("a", (), ())), {}, ())
    with pytest.raises(TfgcError, match="'a' reads 'b', which does not come before"):
        Graph((Node("a", (Ref("b"),), ()), Node("b", (), ())), {}, ())


def test_unknown_dimension_is_asked_for_and_never_guessed():
    graph = Graph((Node("a", (Ref("x"),), (Spec((None, None, 4)),)),), {"x": Spec((None, 2))}, (Ref("a"),))
    with pytest.raises(OptionError, match=r"'a'.*input_shapes"):
        graph.node_bytes  # noqa: B018


@pytest.mark.parametrize("name", ["uniform", "sqrt"])
@pytest.mark.parametrize("segments", [1, 2, 5, 12])
def test_number_of_segments_is_the_one_asked_for(name, segments):
    assert len(strategies.apply(name, random_graph(1), segments=segments).segments) == segments


def test_sqrt_cuts_even_costs_where_little_is_alive():
    plan = strategies.apply("sqrt", chain([10, 10, 1, 10, 10, 10]), segments=2)
    assert [len(s.nodes) for s in plan.segments] == [3, 3]
    assert len(strategies.apply("sqrt", chain([5] * 100)).segments) == 10


def test_uniform_has_equal_counts():
    plan = strategies.apply("uniform", chain([1] * 10), segments=4)
    assert [len(s.nodes) for s in plan.segments] == [2, 3, 3, 2]


def test_manual_cuts_behind_the_named_layers():
    plan = strategies.apply("manual", chain([1] * 5), keep=["n1", "n3", "n4"])
    assert [s.nodes for s in plan.segments] == [("n0", "n1"), ("n2", "n3"), ("n4",)]


def test_a_function_is_a_strategy():
    def halves(graph, *, at=0.5):
        return Plan.from_cuts(graph, [int(len(graph) * at)], strategy="halves")

    assert [len(s.nodes) for s in strategies.apply(halves, chain([1] * 8), at=0.25).segments] == [2, 6]
    with pytest.raises(OptionError, match="'halves' takes no option 'att'; did you mean 'at'"):
        strategies.apply(halves, chain([1]), att=1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sqr", {}, "no strategy 'sqr'; did you mean 'sqrt'"),
        ("sqrt", {"segment": 3}, "'sqrt' takes no option 'segment'; did you mean 'segments'"),
        ("keep_all", {"segments": 3}, "it takes none"),
        ("sqrt", {"budget": 10}, "'sqrt' does not honour a budget"),
        ("uniform", {"segments": 0}, "segments=0"),
        ("uniform", {"segments": 2.0}, r"segments=2\.0"),
        ("uniform", {"segments": 13}, "segments=13: the model has 12 nodes"),
        ("sqrt", {"segments": 13}, "segments=13: the model has 12 nodes"),
        ("manual", {}, "needs the option keep"),
        ("manual", {"keep": 3}, "keep=3"),
        ("manual", {"keep": ["n1", "n33"]}, "no layer 'n33' in the model; did you mean 'n3'"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(OptionError, match=message):
        strategies.apply(name, random_graph(0), **options)


def test_plan_for_another_model_names_the_first_difference():
    plan = strategies.apply("uniform", chain([4, 5, 6]))
    with pytest.raises(PlanMismatchError, match=r"plan has n1 .*5\].*this model has n1 .*7\]"):
        plan.check(chain([4, 7, 6]))
    with pytest.raises(PlanMismatchError, match="it has 3 nodes, this model has 4"):
        plan.check(chain([4, 5, 6, 7]))


def test_plan_fits_the_same_model_at_any_batch():
    assert strategies.apply("uniform", chain([4, 5], 8)).check(chain([4, 5], 64)) is None


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([("n0",), ("n2",)], "leaves out 'n1'|would run before"),
        ([("n0", "n1"), ("n1", "n2")], "'n1' is in it twice"),
        ([("n1", "n0", "n2")], "'n1' would run before 'n0'"),
        ([("n0", "n1", "n2", "n9")], "'n9' is not in the model"),
        ([("n0", "n1")], "leaves out 'n2'"),
    ],
)
def test_plans_that_do_not_cover_the_model(groups, message):
    graph = chain([1, 2, 3])
    good = strategies.apply("uniform", graph)
    plan = Plan(tuple(Segment(g) for g in groups), "by hand", good.model)
    with pytest.raises(PlanMismatchError, match=message):
        plan.check(graph)


def test_segments_of_no_known_mode_are_refused():
    with pytest.raises(OptionError, match="'drop'"):
        Segment(("a",), mode="drop")


def test_only_recomputed_segments_of_a_whole_plan_store_on_the_host():
    stored = Segment(("a",), offload=True)
    with pytest.raises(OptionError, match="offload=True: a segment of mode 'keep'"):
        Segment(("a",), mode="keep", offload=True)
    with pytest.raises(OptionError, match="inner plan"):
        Segment(("a",), inner=Plan((stored,), "by hand", ()))
    for link in (0, -1.0, float("nan")):
        with pytest.raises(OptionError, match="must be positive"):
            Plan((stored,), "by hand", ("a",), link=link)


def test_segments_without_nodes_cannot_be_made():
    with pytest.raises(OptionError, match="at least one node"):
        Segment(())
    for cut in (0, -1, 3, 99):
        with pytest.raises(OptionError, match=f"position {cut}"):
            Plan.from_cuts(chain([1, 2, 3]), [cut], strategy="by hand")


def test_a_plan_is_saved_and_loaded_and_what_is_no_plan_is_told_with_its_path(tmp_path):
    plan, path = strategies.apply("sqrt", chain([1, 2, 3])), tmp_path / "plan.json"
    plan.save(str(path))
    assert Plan.load(path) == plan
    assert path.read_text() == plan.to_json()
    for damaged, message in [
        (b"[]", "not a plan"),
        (b"\xff", "not a plan file: it is not text"),
        (None, "cannot read"),
    ]:
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(TfgcError, match=message) as told:
            Plan.load(path)
        assert repr(str(path)) in str(told.value)
    with pytest.raises(TfgcError, match="cannot write '/no/such/plan"):
        plan.save("/no/such/plan.json")


def test_damaged_plan_files():
    good = strategies.apply("sqrt", chain([1, 2, 3])).to_json()
    newer = json.dumps({**json.loads(good), "version": 99})
    forged = good.replace("n1", "m1")
    for text, message in [
        ("", "not a plan"),
        (good[:50], "not a plan"),
        ("[]", "not a plan"),
        ('{"format": 3}', "not a plan"),
        (newer, "version 99"),
        (forged, "damaged"),
    ]:
        with pytest.raises(TfgcError, match=message):
            Plan.from_json(text)


def test_planning_imports_neither_tensorflow_nor_keras():
    code = (
        "import sys, tfgc; from tfgc import strategies, Graph, Plan, Segment; "
        "[strategies.get(s) for s in strategies.available()]; import tfgc._cli, tfgc._report; "
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
