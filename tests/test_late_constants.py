"""Constants that wait for the gradients that they scale."""

import pytest
import tensorflow as tf

from tfgc._framework import late_constants


@pytest.mark.parametrize(
    ("scaled", "sizes", "behind"),
    [
        (lambda g, s: (g * s) * 0.5, (None, 64), 1),
        (lambda g, s: 0.5 * (s * g), (None, 64), 1),
        (lambda g, s: g * s * 0.5 + g * s * 0.25, (None, 64), 2),
        (lambda g, s: (g * s) * 0.5, (64, 64), 0),  # of known sizes, which Grappler orders itself
        (lambda g, s: (g * s[:1, :8, tf.newaxis][0, :1]) * 0.5, (None, 64), 0),  # small
        (lambda g, s: (g * g) * 0.5, (None, 64), 0),
        (lambda g, s: (g + s) * 0.5, (None, 64), 0),
        (lambda g, s: (s * s) * 0.5, (None, 64), 0),  # waits for no gradient anyway
    ],
)
def test_what_is_there_before_a_gradient_is_not_scaled_before_it(scaled, sizes, behind):
    with tf.Graph().as_default() as graph:
        g, s = (tf.compat.v1.placeholder(tf.float32, sizes) for _ in range(2))
        result = scaled(g, s)
        late_constants.hold_back(graph.get_operations(), [g])
        readers = [t.op.type for op in graph.get_operations() if op.type == "Mul" for t in op.inputs]
        function = tf.compat.v1.Session(graph=graph).make_callable(result, [g, s])
    assert readers.count("PlaceholderWithDefault") == behind
    one, other = (tf.random.stateless_normal((64, 64), (seed, 1)).numpy() for seed in (1, 2))
    assert (function(one, other) == scaled(*map(tf.constant, (one, other))).numpy()).all()
