"""The simulator against arithmetic done by hand.

All tensors are of a one-byte float, so that bytes can be read off the sizes. Unless a
node says otherwise it keeps its inputs and its output, makes one gradient for each
input, and computes one flop a byte forward and two backward. A line of bytes has one entry an
event: each run of a node forward, the loss, each backward pass.
"""

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from tfgc import Graph, Plan, PlanMismatchError, strategies
from tfgc._core import buffers
from tfgc._core.graph import Cost, Node, Ref, Spec
from tfgc._simulate import outlooks, simulator

A = Ref("a")


def node(name, reads, *sizes, cost=None):
    reads = tuple(Ref(r) if isinstance(r, str) else r for r in reads)
    return Node(name, reads, tuple(Spec((size,), "float8_e5m2") for size in sizes), cost=cost)


def graph(*nodes, inputs=("x",), outputs=None, **settings):
    last = (Ref(nodes[-1].name),)
    return Graph(nodes, {name: Spec((9,), "float8_e5m2") for name in inputs}, outputs or last, **settings)


def chain(*sizes):
    names = "abcdefgh"[: len(sizes)]
    return graph(*(node(name, [before], size) for before, name, size in zip("x" + names, names, sizes)))


def predict(graph, *pieces):
    pieces = pieces or [(0, len(graph), "keep")]
    return simulator.predict(graph, Plan.from_pieces(graph, pieces, strategy="by hand"))


def line(prediction):
    return [count for _, count, _ in prediction.timeline]


def test_plain_chain():
    found = predict(chain(2, 3, 4))
    #   a, b on top, c on top; the gradient of c; then c, b, a with the gradients of their output and input
    assert line(found) == [2, 2 + 3, 5 + 4, 9 + 4, 9 + 4 + 3, 5 + 3 + 2, 2 + 2]
    assert [name for _, _, name in found.timeline] == ["a", "b", "c", "c", "c", "b", "a"]
    assert [work for work, _, _ in found.timeline] == [0, 2, 5, 9, 9, 9 + 8, 17 + 6]
    assert (found.peak_bytes, found.node, found.phase) == (16, "c", "backward")
    assert (found.work, found.plain_work, found.overhead) == (27, 27, 0)
    assert found.runs == {"a": 1, "b": 1, "c": 1}


def test_recomputed_chain():
    found = predict(chain(2, 3, 4), (0, 2, "recompute"), (2, 3, "keep"))
    first = [2, 2 + 3, 3 + 4, 7 + 4, 7 + 4 + 3]  # a goes once b is there
    replay = [3 + 2, 2 + 3 + 3, 5 + 3 + 2, 2 + 2]  # while the gradient of b waits
    assert line(found) == first + replay
    assert (found.peak_bytes, found.node, found.phase) == (14, "c", "backward")
    assert found.runs == {"a": 2, "b": 2, "c": 1}
    assert (found.work, found.plain_work) == (27 + 2 + 3, 27)
    assert found.overhead == pytest.approx(5 / 27)


def test_nested_replay():
    inner = [(0, 2, "recompute"), (2, 3, "keep")]
    found = predict(chain(2, 3, 4, 5), (0, 3, inner), (3, 4, "keep"))
    first = [2, 2 + 3, 3 + 4, 4 + 5, 9 + 5, 9 + 5 + 4]
    outer = [4 + 2, 2 + 4 + 3, 3 + 4 + 4, 7 + 4 + 3]  # the gradient of c waits; a goes again
    innermost = [3 + 2, 2 + 3 + 3, 5 + 3 + 2, 2 + 2]
    assert line(found) == first + outer + innermost
    assert found.runs == {"a": 3, "b": 3, "c": 2, "d": 1}
    assert found.work == 3 * 14 + (2 + 3 + 4) + (2 + 3)


def test_keep_in_the_middle():
    found = predict(chain(2, 3, 4, 5), (0, 1, "recompute"), (1, 2, "keep"), (2, 3, "recompute"), (3, 4, "keep"))
    first = [2, 2 + 3, 5 + 4, 9 + 5, 14 + 5, 14 + 5 + 4]  # b keeps a and b, whatever the others do
    last_two = [5 + 4 + 4, 9 + 4 + 3]  # c again: a, b and the gradient of c; then c back
    assert line(found) == first + last_two + [5 + 3 + 2] + [2 + 2, 2 + 2]
    assert found.runs == {"a": 2, "b": 1, "c": 2, "d": 1}


def test_skip_connection():
    skip = graph(node("a", "x", 2), node("b", "a", 3), node("c", "ba", 2))
    # The gradient of a that c gives waits while b runs back, which gives the other.
    assert line(predict(skip)) == [2, 2 + 3, 5 + 2, 7 + 2, 7 + 2 + 3 + 2, 5 + (3 + 2) + 2, 2 + 2]
    again = line(predict(skip, (0, 2, "recompute"), (2, 3, "keep")))
    assert again == [2, 2 + 3, 5 + 2, 7 + 2, 7 + 2 + 3 + 2] + [5 + 2, 2 + 5 + 3, 5 + 5 + 2, 2 + 2]


def test_two_inputs_two_outputs():
    both = graph(
        node("a", "x", 2), node("b", "y", 3), node("c", "ab", 4, 1), inputs=("x", "y"), outputs=(Ref("c", 0), A)
    )
    # c makes 4 + 1, of which only the 4 has a gradient; a has one from the loss and one from c.
    expected = [2, 2 + 3, 5 + (4 + 1), 10 + (4 + 2), 10 + (4 + 2) + (2 + 3), 5 + (2 + 2) + 3, 2 + 2]
    assert line(predict(both)) == expected


def conv(name, read, size):
    """Its backward pass reads only its input."""
    wants = () if read == "x" else (Ref(read),)
    cost = Cost((Ref(read),), wants, forward_bytes=size, backward_bytes=size if wants else 0)
    return node(name, [read], size, cost=cost)


def test_what_a_node_allocates_meanwhile_counts_while_it_runs():
    """b needs 9 on its way forward, its output among it, and 6 backward."""
    tall = Cost((A,), (A,), forward_bytes=9, backward_bytes=6)
    net = graph(node("a", "x", 2), node("b", "a", 2, cost=tall), node("c", "b", 3))
    assert line(predict(net)) == [2, 2 + 9, 4 + 3, 7 + 3, 7 + 3 + 2, 2 + 2 + 6, 2 + 2]
    tall = dataclasses.replace(tall, saved_tensors=(A, Ref("b")))
    net = graph(node("a", "x", 2), node("b", "a", 2, cost=tall), node("c", "b", 3))
    again = predict(net, (0, 2, "recompute"), (2, 3, "keep"))
    assert (again.peak_bytes, again.node, again.phase) == (2 + 9 + 2, "b", "replay")


def test_where_no_gradient_comes_nothing_runs_back():
    nodes = (node("a", "x", 2), Node("b", (A,), (Spec((3,), "int8"),)), node("c", "b", 1))
    found = predict(graph(*nodes))
    # b makes whole numbers, and a, which has no gradient for want of b's, keeps nothing.
    assert line(found) == [2, 2 + 3, 3 + 1, 4 + 1, 4 + 1]
    assert [name for _, _, name in found.timeline][3:] == ["c", "c"]


def test_a_replay_leaves_out_what_no_backward_pass_reads():
    tail = graph(conv("a", "x", 4), conv("b", "a", 5), conv("c", "b", 6), conv("d", "c", 1))
    found = predict(tail, (0, 3, "recompute"), (3, 4, "keep"))
    assert found.runs == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert line(found)[-5:] == [6 + 4, 4 + 6 + 5, 9 + 6 + 6, 4 + 5 + 5, 4]


def test_an_input_of_the_graph_that_it_also_returns_costs_nothing():
    assert line(predict(graph(node("a", "x", 2), outputs=(A, Ref("x"))))) == [2, 2 + 2, 2 + 2]


def test_one_node():
    assert line(predict(chain(3))) == [3, 3 + 3, 3 + 3]
    assert line(predict(chain(3), (0, 1, "recompute"))) == [3, 3 + 3, 3 + 3, 3 + 3]


def test_a_plan_for_another_graph_is_refused():
    plan = strategies.apply("uniform", chain(1, 2, 3))
    with pytest.raises(PlanMismatchError):
        simulator.predict(chain(1, 2, 4), plan)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(graphs(most=12), st.data())
def test_the_sums_of_a_prediction_fit_together(graph, data):
    plan = strategies.apply("uniform", graph, segments=data.draw(st.integers(1, len(graph))))
    found = simulator.predict(graph, plan)
    replay = {n.name: cost.flops for n, cost in zip(graph.nodes, graph.costs)}
    assert found.peak_bytes == max(line(found))
    assert found.runs.keys() == replay.keys()
    assert found.work == found.plain_work + sum(replay[name] * (runs - 1) for name, runs in found.runs.items())
    assert min(line(found)) >= 0


def test_the_buffers_of_a_graph_are_numbered_once(monkeypatch):
    made, init = [], buffers.Buffers.__init__

    def noted(self, graph):
        made.append(graph)
        init(self, graph)

    monkeypatch.setattr(buffers.Buffers, "__init__", noted)
    net = chain(2, 3, 4)
    for pieces in ([(0, 3, "keep")], [(0, 2, "recompute"), (2, 3, "keep")]):
        outlooks.with_outlook(net, Plan.from_pieces(net, pieces, strategy="by hand"))
    strategies.apply("budget", net, budget=14)
    assert made == [net]


def test_what_is_derived_from_a_graph_is_neither_pickled_nor_compared():
    net = chain(2, 3, 4)
    before = pickle.dumps(net)
    simulator.predict(net, Plan.from_cuts(net, [1], strategy="by hand"))
    assert pickle.dumps(net) == before
    assert pickle.loads(before) == copy.deepcopy(net) == dataclasses.replace(net) == net
