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
from tfgc._simulate.work import node_work

A, B, C = Ref("a"), Ref("b"), Ref("c")


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
    assert (found.work, found.plain_work, found.overhead, found.unit) == (27, 27, 0, "flop")
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


def test_a_selective_segment_stores_products_and_runs_the_rest():
    products = Cost(
        saved_tensors=(A,),
        saved_internal_bytes=(4, 1),
        forward_trace=(3,),
        forward_saving_trace=(3, 4, 1),
        backward_trace=(2,),
        differentiable_inputs=(A,),
        selective_bytes=6,
        selective_saved_bytes=4,
        selective_trace=(3, 1),
        flops=10,
        backward_flops=5,
        selective_flops=2,
    )
    net = graph(node("a", "x", 2), node("b", "a", 3, cost=products), node("c", "b", 4))
    found = predict(net, (0, 2, "selective"), (2, 3, "keep"))
    first = [2, 2 + 3, 3 + 6 + 4, 13 + 4, 13 + 4 + 3]  # 6 of products stay when b is done
    # While the gradient of b waits. When b has run again, 2 of the products go; the other 4 are part of what it saves.
    replay = [6 + 2 + 3, 8 + 3 + 1 + 3, 2 + 4 + 1 + 3 + 2, 2 + 2]
    assert line(found) == first + replay
    assert (found.work, found.plain_work) == (33 + 2 + 2, 33)
    compiled = simulator.predict(
        net, Plan.from_pieces(net, [(0, 2, "selective"), (2, 3, "keep")], strategy=""), "compiled"
    )
    # What the compiled segment receives stays until it returns: all products, and the upstream gradient. What the model
    # returned, 4, stays in the loop.
    assert line(compiled)[-3:] == [2 + 6 + 1 + 3 + 2 + 4, 2 + 6 + 3 + 2 + 4, 6 + 3 + 4]


def test_the_peak_can_be_in_a_replay():
    last = node(
        "c",
        ["b"],
        1,
        cost=Cost(
            saved_tensors=(B,),
            forward_trace=(1,),
            forward_saving_trace=(1,),
            backward_trace=(1,),
            differentiable_inputs=(B,),
        ),
    )
    tall = Cost(
        saved_tensors=(A,),
        forward_trace=(1,),
        forward_saving_trace=(1, 9),
        backward_trace=(2,),
        differentiable_inputs=(A,),
    )
    found = predict(graph(node("a", "x", 2), node("b", "a", 1, cost=tall), last), (0, 2, "recompute"), (2, 3, "keep"))
    assert (found.peak_bytes, found.node, found.phase) == (2 + 1 + 2, "b", "backward")
    again = dataclasses.replace(tall, saved_tensors=(A, B))
    found = predict(graph(node("a", "x", 2), node("b", "a", 1, cost=again), last), (0, 2, "recompute"), (2, 3, "keep"))
    assert (found.peak_bytes, found.node, found.phase) == (2 + 1 + 10, "b", "replay")


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


def relu(name, read, size, **more):
    """Writes over its input, and its backward pass reads only its output."""
    cost = Cost(
        (Ref(name),), (), (size,), (size,), (size,), differentiable_inputs=(Ref(read),), overwrites=Ref(read), **more
    )
    return node(name, [read], size, cost=cost)


def conv(name, read, size, **more):
    """Its backward pass reads only its input."""
    wants = () if read == "x" else (Ref(read),)
    backward = (size,) if wants else ()
    return node(
        name, [read], size, cost=Cost((Ref(read),), (), (size,), (size,), backward, differentiable_inputs=wants, **more)
    )


def test_a_node_that_writes_over_its_input():
    pair = graph(conv("a", "x", 4), relu("b", "a", 4), conv("c", "b", 4))
    assert line(predict(pair)) == [4, 4, 4 + 4, 8 + 4, 4 + 4 + 4, 4 + 4 + 4, 4]
    # Nothing is written over across a cut: the runner still holds it.
    parted = predict(pair, (0, 1, "recompute"), (1, 3, "keep"))
    assert line(parted)[:3] == [4, 4 + 4, 4 + 4]


@pytest.mark.parametrize("why", ["read again", "kept", "an output of the graph", "not made just before"])
def test_what_others_need_is_not_written_over(why):
    nodes = [conv("a", "x", 4), relu("b", "a", 4), node("c", "b", 1)]
    outputs = (C,)
    if why == "read again":
        nodes[2] = node("c", "ba", 1)
    elif why == "kept":
        nodes[0] = conv("a", "x", 4)
        nodes[0] = dataclasses.replace(nodes[0], cost=dataclasses.replace(nodes[0].cost, saved_tensors=(A,)))
    elif why == "an output of the graph":
        outputs = (C, A)
    else:
        nodes.insert(1, node("n", "x", 0))
    timeline = predict(graph(*nodes, outputs=outputs)).timeline
    assert next(count for _, count, name in timeline if name == "b") == 4 + 4


def test_an_input_of_the_graph_is_not_written_over():
    assert line(predict(graph(relu("a", "x", 4))))[0] == 4


def test_a_view_makes_no_buffer_and_no_gradient():
    view = Cost((), differentiable_inputs=(A,), passthrough_inputs=(A,), aliases=(A,))
    seen = graph(node("a", "x", 2), node("b", "a", 2, cost=view), node("c", "b", 3))
    assert line(predict(seen)) == [2, 2, 2 + 3, 5 + 3, 5 + 3 + 2, 2 + 2, 2 + 2]
    # Stored across a cut it is stored once, though two segments read it under different names.
    again = graph(node("a", "x", 2), node("b", "a", 2, cost=view), node("c", "b", 3), node("d", "ac", 1))
    plan = strategies.apply(lambda g: Plan.from_cuts(g, [2, 3], strategy="by hand"), again)
    assert [s.stored_bytes for s in plan.segments] == [0, 2, 3 + 1]


def test_an_addition_hands_its_gradient_on():
    def line_of(cost):
        return line(predict(graph(node("a", "x", 2), node("b", "a", 2), node("c", "ab", 2, cost=cost))))

    handed = Cost(
        (), forward_trace=(2,), forward_saving_trace=(2,), differentiable_inputs=(A, B), passthrough_inputs=(A, B)
    )
    assert line_of(handed) == [2, 2 + 2, 4 + 2, 6 + 2, 4 + 2, 4 + 2 + 2, 2 + 2]
    copied = Cost(
        (), forward_trace=(2,), forward_saving_trace=(2,), backward_trace=(2, 2), differentiable_inputs=(A, B)
    )
    assert line_of(copied) == [2, 2 + 2, 4 + 2, 6 + 2, 4 + 2 + 4, 4 + 4 + 2, 2 + 2]


def test_buffers_inside_of_a_node():
    """b keeps 5 inside, needs 1 more on its way, and a workspace of 4 that is gone before it ends."""
    inside = Cost(
        (A,),
        (5,),
        forward_trace=(4, 2, -4),
        forward_saving_trace=(5, 1, -1, 2),
        backward_trace=(3, -5, 2),
        differentiable_inputs=(A,),
    )
    kept = graph(node("a", "x", 2), node("b", "a", 2, cost=inside), node("c", "b", 3))
    assert line(predict(kept)) == [2, 2 + 7, 9 + 3, 12 + 3, 12 + 3 + 2, (2 + 5) + 2 + 3, 2 + 2]
    again = predict(kept, (0, 2, "recompute"), (2, 3, "keep"))
    assert line(again) == [2, 2 + 6, 2 + 3, 5 + 3, 5 + 3 + 2] + [2 + 2, 2 + 2 + 7, (2 + 2 + 5) - 2 + 2 + 3, 2 + 2]


def test_gradients_of_weights_go_with_the_update_that_follows():
    layers = (conv("a", "x", 4, gradient_bytes=100), conv("b", "a", 4), conv("c", "b", 4, gradient_bytes=30))
    expected = [4, 4 + 4, 8 + 4, 12 + 4, 8 + 4 + 4, 4 + 4 + 4, 4]
    weights = [0, 0, 0, 0, 30, 0, 100]
    assert line(predict(graph(*layers))) == expected
    assert line(predict(graph(*layers, whole_step=True))) == [a + b for a, b in zip(expected, weights)]
    replayed = line(predict(graph(*layers, whole_step=True), (0, 2, "recompute"), (2, 3, "keep")))
    assert replayed == [4, 4 + 4, 4 + 4, 8 + 4, 4 + 4 + 4 + 30] + [4 + 4, 4 + 4 + 4, 4 + 100]


def test_gradients_of_weights_pile_up_in_eager_mode():
    layers = (conv("a", "x", 4, gradient_bytes=100), conv("b", "a", 4), conv("c", "b", 4, gradient_bytes=30))
    whole = graph(*layers, whole_step=True)
    found = simulator.predict(whole, strategies.apply("keep_all", whole), mode="compiled")
    # a and b, which were stored, c, which was returned, and its gradient stay until the compiled segment returns.
    given = 4 + 4 + 4 + 4
    assert line(found)[:5] == [4, 4 + 4, 8 + 4, 12 + 4, given + 4 + 30]
    assert line(found)[5:] == [given + 4 + 4 + 30, given + 4 + 130, given + 130]


def test_the_whole_step_has_weights_gradients_and_slots():
    both = graph(conv("a", "x", 4, gradient_bytes=100), conv("b", "a", 4, gradient_bytes=30))
    found = simulator.estimate(both, strategies.apply("keep_all", both), 1000)
    assert (found.fixed_bytes, found.activation_bytes) == (1000, 12)
    assert (found.peak_bytes, found.node) == (1000 + 100 + 4, "a")


def test_a_replay_leaves_out_what_no_backward_pass_reads():
    tail = graph(conv("a", "x", 4), conv("b", "a", 5), conv("c", "b", 6), conv("d", "c", 1))
    found = predict(tail, (0, 3, "recompute"), (3, 4, "keep"))
    assert found.runs == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert line(found)[-5:] == [6 + 4, 4 + 6 + 5, 9 + 6 + 6, 4 + 5 + 5, 4]


def test_a_node_without_gradient_is_not_run_back():
    stops = Cost((A,), (7,), forward_trace=(3,), forward_saving_trace=(3, 7), differentiable=False)
    nodes = (node("a", "x", 2), node("b", "a", 3, cost=stops), node("c", "b", 1))
    found = predict(graph(*nodes))
    # b keeps nothing, and a, which has no gradient for want of b's, neither.
    assert line(found) == [2, 2 + 10, 3 + 1, 4 + 1, 4 + 1 + 3]
    assert found.plain_work == (2 + 0 + 1) + 2
    assert [name for _, _, name in found.timeline][3:] == ["c", "c"]
    integer = Node("b", (A,), (Spec((3,), "int8"),))
    assert line(predict(graph(nodes[0], integer, nodes[2]))) == [2, 2 + 3, 3 + 1, 4 + 1, 4 + 1]


def test_an_input_of_the_graph_that_it_also_returns_costs_nothing():
    assert line(predict(graph(node("a", "x", 2), outputs=(A, Ref("x"))))) == [2, 2 + 2, 2 + 2]


def test_seconds_count_where_every_node_was_timed():
    timed = conv("a", "x", 4, seconds=2.0, backward_seconds=5.0, flops=10, backward_flops=10)
    half = conv("b", "a", 4, seconds=0.5, backward_seconds=1.0, flops=30, backward_flops=60)
    again = predict(graph(timed, relu("b", "a", 4, seconds=0.5, backward_seconds=1.0)), (0, 2, "recompute"))
    assert (again.unit, again.work, again.plain_work) == ("s", 8.5 + 2.5, 8.5)
    assert predict(graph(timed, half)).work == 8.5
    untimed = predict(graph(timed, conv("b", "a", 4, flops=30, backward_flops=60)))
    assert (untimed.unit, untimed.work) == ("flop", 110)


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
    works, _ = node_work(graph)
    replay = {n.name: work.forward for n, work in zip(graph.nodes, works)}
    assert found.peak_bytes == max(line(found))
    assert found.runs.keys() == replay.keys()
    assert found.work == found.plain_work + sum(replay[name] * (runs - 1) for name, runs in found.runs.items())
    assert min(line(found)) >= 0


def test_the_buffers_of_a_graph_are_numbered_once(monkeypatch):
    """Once for each of what counts: activations alone, and the whole step."""
    made, init = [], buffers.Buffers.__init__

    def noted(self, graph):
        made.append(graph.whole_step)
        init(self, graph)

    monkeypatch.setattr(buffers.Buffers, "__init__", noted)
    net = chain(2, 3, 4)
    for pieces in ([(0, 3, "keep")], [(0, 2, "recompute"), (2, 3, "keep")]):
        plan = Plan.from_pieces(net, pieces, strategy="by hand")
        simulator.estimate(net, plan, 0)
        outlooks.with_outlook(net, plan)
    strategies.frontier(net)
    assert sorted(made) == [False, True]


def test_what_is_derived_from_a_graph_is_neither_pickled_nor_compared():
    net = chain(2, 3, 4)
    before = pickle.dumps(net)
    simulator.estimate(net, Plan.from_cuts(net, [1], strategy="by hand"), 0)
    assert pickle.dumps(net) == before
    assert pickle.loads(before) == copy.deepcopy(net) == dataclasses.replace(net) == net
