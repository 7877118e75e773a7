"""What a copy of a traced graph leaves out: constants that are equal to others, and identities that do nothing."""

import collections

import pytest
import tensorflow as tf

from tfgc._framework import graph_copies


def copied(build, edges=lambda tensors: ()):
    """The operations of a copy of what `build` makes of one tensor, by type, and what the copy computes of ones."""
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(tf.float32, (2,))
        *made, result = build(given)
        part = graph_copies.Part(graph, [given], [result], edges(made))
    counts = collections.Counter()

    @tf.function
    def run():
        before = len(tf.compat.v1.get_default_graph().get_operations())
        (tensor,) = part.copy([tf.ones(2)], "copy")
        made = tf.compat.v1.get_default_graph().get_operations()[before:]
        counts.update(op.type for op in made if op.name.startswith("copy"))
        return tensor

    return counts, run().numpy().tolist()


def test_equal_constants_are_one():
    counts, found = copied(lambda x: [(x + tf.constant(2.0)) * tf.constant(2.0) - tf.constant(3.0)])
    assert counts["Const"] == 2
    assert found == [3.0, 3.0]


@pytest.mark.parametrize("other", [tf.constant([2.0, 2.0]).numpy(), 2])
def test_constants_of_other_shapes_and_types_are_others(other):
    counts, found = copied(lambda x: [x * tf.constant(2.0) + tf.cast(tf.constant(other), tf.float32)])
    assert counts["Const"] == 2
    assert found == [4.0, 4.0]


def test_chains_of_identities_are_left_out():
    counts, found = copied(lambda x: [tf.identity(tf.identity(x + 1.0)) * 3.0])
    assert counts["Identity"] == 0
    assert found == [6.0, 6.0]


def test_one_of_several_outputs_is_handed_on():
    counts, found = copied(
        lambda x: [tf.identity(tf.unstack(x * tf.constant([1.0, 5.0]))[1]) + tf.constant([0.0, 1.0])]
    )
    assert counts["Identity"] == 0
    assert found == [5.0, 6.0]


def test_an_identity_that_is_the_result_stays():
    counts, found = copied(lambda x: [tf.identity(x)])
    assert counts["Identity"] == 1
    assert found == [1.0, 1.0]


def test_an_identity_on_a_device_stays():
    def build(x):
        with tf.device("/CPU:0"):
            there = tf.identity(x + 1.0)
        return [there * 2.0]

    counts, found = copied(build)
    assert counts["Identity"] == 1
    assert found == [4.0, 4.0]


def test_an_identity_that_waits_stays_and_what_waits_for_one_waits_for_its_source():
    def build(x):
        first = tf.exp(x)
        passed, waits = tf.identity(first), tf.identity(x)
        return [passed, waits, waits - 1.0]

    counts, found = copied(build, lambda made: [(made[1].op, [made[0].op])])
    assert counts == {"Const": 1, "Exp": 1, "Identity": 1, "Sub": 1}
    assert found == [0.0, 0.0]


def test_an_identity_with_a_gradient_of_its_own_keeps_it():
    @tf.RegisterGradient("tfgc-test-seven")
    def seven(_, upstream):
        return upstream * 7.0

    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(tf.float32, ())
        with graph.gradient_override_map({"Identity": "tfgc-test-seven"}):
            marked = tf.identity(given)
        part = graph_copies.Part(graph, [given], [marked * 2.0])

    @tf.function
    def gradient():
        x = tf.constant(1.0)
        (y,) = part.copy([x], "copy")
        return tf.gradients(y, x)

    assert [float(g) for g in gradient()] == [14.0]


@pytest.mark.parametrize(("computed", "read"), [("Sin", ["Sin"]), ("Cos", ["Cos"]), ("Placeholder", [])])
def test_a_shape_is_read_of_what_is_computed_anyway(computed, read):
    """That of a sine, or that of the cosine, which equals it; else the one that is given."""
    with tf.Graph().as_default() as graph:
        x, given = tf.compat.v1.placeholder(tf.float32, (None,)), tf.compat.v1.placeholder(tf.int32, (1,))
        made = {tensor.op.type: tensor for tensor in (x, tf.sin(x), tf.cos(x))}
        asked, other = (tf.raw_ops.Shape(input=made[kind]) for kind in ("Sin", "Cos"))
        result = tf.zeros(asked) + made[computed]
        part = graph_copies.Part(graph, [x, given], [result], instead={asked.name: [other, given]})
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None,)), tf.TensorSpec((1,), tf.int32)])
    def run(x, given):
        (tensor,) = part.copy([x, given], "copy")
        operations = tf.compat.v1.get_default_graph().get_operations()
        found.extend(op.inputs[0].op.type for op in operations if op.type == "Shape")
        return tensor

    assert run(tf.ones(2), tf.constant([2])).shape == (2,)
    assert found == read
