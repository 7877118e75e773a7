"""What the allocator makes of a step, counted by hand: in MiB above what is in use between steps.

Regions are of 2, 4, 8, ... MiB, a free chunk is split where it is at least twice what is asked for, and sizes here are
in MiB, so that nothing is rounded. `a|b` is a region cut into chunks. Nodes read the one before and give it a gradient.
"""

import pytest

from tfgc import Graph
from tfgc._core.graph import Cost, Node, Ref, Spec
from tfgc._core.plan import Plan
from tfgc._simulate import allocation
from tfgc._simulate.step_events import StepEvents

MIB = 2**20


def node(name, reads, size, **cost):
    """A node that keeps what it reads, unless `cost` says otherwise."""
    read = Ref(reads)
    cost = {"saved_tensors": (read,), "differentiable_inputs": () if reads == "x" else (read,), **cost}
    return Node(name, (read,), (Spec((int(size * MIB),), "float8_e5m2"),), cost=Cost(**cost))


def events(*nodes, pieces=None, mode="graph", x=1, batch_size=1):
    inputs = {"x": Spec((int(x * MIB),), "float8_e5m2")}
    graph = Graph(nodes, inputs, (Ref(nodes[-1].name),), batch_size, whole_step=True)
    plan = Plan.from_pieces(graph, pieces or [(0, len(nodes), "keep")], strategy="by hand")
    return StepEvents(graph, plan.segments, mode)


def allocated(*nodes, most=False, **options):
    return allocation.peaks_allocated(events(*nodes, **options))[most] / MIB


def chain(size):
    return [node("a", "x", size), node("b", "a", size), node("c", "b", size)]


def test_chunks_that_fit_are_the_buffers():
    # a, b, c stay for the backward passes, and the gradient of c comes: 4. Then each gradient takes over
    # the chunk of the one before, and a buffer goes with each backward pass.
    assert allocated(*chain(1)) == 4


def test_chunks_handed_out_whole_are_more_than_the_buffers():
    # x fills the region of 2, since that is less than twice 1.5. a: 1.5|2.5 of 4. b: 2.5, whole.
    # c: 1.5|6.5 of 8. Its gradient: 1.5|1.5|5. So 1.5 + 2.5 + 1.5 + 1.5, where buffers come to 6.
    assert allocated(*chain(1.5), x=1.5) == 7


def test_a_replay_takes_what_the_first_run_gave_back():
    # a, b: 2; a goes: 1. c: 2, its gradient: 3, the peak; c goes: 2. Backward of c: b goes, 1. Again a: 2.
    assert allocated(*chain(1), pieces=[(0, 2, "recompute"), (2, 3, "keep")]) == 3


def test_where_the_regions_begin_does_not_matter_here():
    # x fills the region of 2. a: 4, whole: less than twice 3. b: 1|7 of 8. The gradient of b: 1|1|6; b goes.
    # That of a: 3|3 of the 6. So 4 + 1 + 3.
    assert allocated(node("a", "x", 3), node("b", "a", 1), x=2) == 8
    # x leaves 1 in the region of 2, which b takes. The gradient of b: 1|7 of 8; b goes. That of a: 3|4 of the 7.
    assert allocated(node("a", "x", 3), node("b", "a", 1), x=1) == 8


def test_weights_that_move_leave_other_chunks_to_the_next_step():
    # Between steps: weights 3 in a region of 4, whole, x 1|3 of 4. a: 1|1|2. Its gradient: 1|1|1|1; a goes: 1.
    # That of the weights: 3|5 of 8: 4 in the first step; new weights take the 5, whole. Second step: that gradient
    # fits the 3: 4 again, and the weights move back into 4. Third step as the first.
    assert allocated(node("a", "x", 1, gradient_bytes=3 * MIB)) == 4
    # 5 instead of 3. Weights 8 of 8, x 1|7 of 8. a: 1|1|6. Its gradient: 1|1|1|5; a goes: 1. That of the weights
    # fits the 5: 6; new weights 5|11 of 16. From then on the old weights leave 8, but the 5 fit better: 6 again.
    assert allocated(node("a", "x", 1, gradient_bytes=5 * MIB)) == 6


def test_the_most_has_the_chunks_of_the_weights_in_the_worst_of_the_steps():
    # As above: with every update weights of 3 move out of 4, whole, or back. A step needs 4 above what is in use then.
    assert allocated(node("a", "x", 1, gradient_bytes=3 * MIB), most=True) == 5


def test_weights_are_there_between_steps_and_their_gradient_is_not():
    # Between steps: weights 4 of 4, x 1|3 of 4. a: 1|1|2. Its gradient: 1|1|1|1, and a goes: 1.
    # The gradient of the weights: 4|4 of 8: 5. The copy that the update may make is not counted.
    assert allocated(node("a", "x", 1, gradient_bytes=4 * MIB)) == 5


def test_in_a_graph_a_gradient_of_weights_goes_with_its_update():
    # a, b, the gradient of b: 3; b goes: 2. The gradient of the weights of b: 3; that of a takes over. Both go.
    weights = {"gradient_bytes": MIB}
    assert allocated(node("a", "x", 1, **weights), node("b", "a", 1, **weights)) == 3


def test_in_eager_calls_they_wait_for_the_end_and_so_does_what_was_given():
    # a, b, the gradient of b: 3, all of which stay until the segment's backward pass returns. The weights of b: 4.
    # The gradient of a: 5. The weights of a: 6.
    weights = {"gradient_bytes": MIB}
    assert allocated(node("a", "x", 1, **weights), node("b", "a", 1, **weights), mode="compiled") == 6


@pytest.mark.parametrize(("takes", "most"), [(Ref("a"), 5), (None, 8)])
def test_a_node_that_writes_over_its_input_takes_its_chunk(takes, most):
    # No gradient goes back beyond c, so that a and b are not kept. Taken over: 4 for a and b, and 1 for c: 5; b goes,
    # and the gradient of c comes: 2. Not taken over: a and b at once, 4 of 4 and 4|4 of 8: 8; a goes, c comes: 5.
    course = {"forward_trace": (4 * MIB,), "forward_saving_trace": (4 * MIB,)}
    nodes = [
        node("a", "x", 4, saved_tensors=()),
        node("b", "a", 4, saved_tensors=(), differentiable_inputs=(), overwrites=takes, **course),
        node("c", "b", 1, saved_tensors=(), differentiable_inputs=()),
    ]
    assert allocated(*nodes) == most


def test_what_comes_and_goes_inside_of_a_node_is_played_too():
    # Workspace of 2 beside an output of 1, gone before the next node: a: 1 of x's region, 2|2 of 4 meanwhile: 3.
    # b: 1|3 of the 4; its gradient: 1|1|2. Then 3, too: a, b and the gradient of b.
    assert allocated(node("a", "x", 1, forward_saving_trace=(2 * MIB, -2 * MIB, MIB)), node("b", "a", 1)) == 3
    # 4 instead of 2: 4 of 4 beside nothing yet, then 1: the workspace is the peak where it is still there.
    assert allocated(node("a", "x", 1, forward_saving_trace=(4 * MIB, MIB, -4 * MIB)), node("b", "a", 1)) == 5


def test_internal_buffers_stay_until_the_backward_pass():
    # a 1 and its internal 2: 3; b 1 and its gradient 1: 5. b goes; the gradient of a takes over: 4, and all goes.
    assert (
        allocated(
            node("a", "x", 1, saved_internal_bytes=(2 * MIB,), forward_saving_trace=(2 * MIB, MIB)), node("b", "a", 1)
        )
        == 5
    )


def test_gradients_of_a_tensor_with_two_readers_add_up():
    # a, b (reads a), c (reads a and b). Loss: a, b, c and the gradient of c: 4; c goes: 3. Backward of c: one gradient
    # for b takes over, one for a comes: 4. Backward of b: another one for a takes over: b goes, 3. Their sum is one: 2.
    c = Node(
        "c", (Ref("a"), Ref("b")), (Spec((MIB,), "float8_e5m2"),),
        cost=Cost((Ref("a"), Ref("b")), differentiable_inputs=(Ref("a"), Ref("b"))),
    )  # fmt: skip
    assert allocated(node("a", "x", 1), node("b", "a", 1), c) == 4


def test_a_sum_takes_over_the_first_part_that_is_there():
    # The gradient of e is passed on to a: of its two parts that of b is left, 4. It is there beside
    # that of the weights of a, 16.
    def add(name, *reads):
        refs = tuple(map(Ref, reads))
        return Node(
            name, refs, (Spec((4 * MIB,), "float8_e5m2"),),
            cost=Cost((), differentiable_inputs=refs, passthrough_inputs=refs),
        )  # fmt: skip

    nodes = [node("a", "x", 4, gradient_bytes=16 * MIB), node("b", "a", 4), add("c", "a", "b")]
    nodes += [node("d", "c", 4), add("e", "c", "d")]
    assert allocated(*nodes, pieces=[(0, 1, "keep"), (1, 5, "recompute")], batch_size=4) >= 20


def test_what_is_small_is_left_out():
    # Each of 255 KiB: all from the other pool.
    assert allocated(*chain(255 / 1024)) == 0
