"""What the loss and compiled metrics need is part of the predicted step."""

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf

import tfgc
from tfgc._core.buffers import peak_of
from tfgc._planning import annotated

TOKENS, WORDS = 64, 2048
LOGITS = 8 * TOKENS * WORDS * 4


def tagger(metrics, weighted_metrics=None, loss="sparse_categorical_crossentropy"):
    x = inputs = keras.Input((TOKENS,), dtype="int32")
    x = keras.layers.Embedding(WORDS, 16)(x)
    model = keras.Model(inputs, keras.layers.Dense(WORDS, name="words")(keras.layers.Dense(32, "relu")(x)))
    model.compile("sgd", loss, metrics=metrics, weighted_metrics=weighted_metrics, jit_compile=False)
    return model


def beside(*arguments, **more):
    """What metrics add to the predicted step, in parts of the logits."""
    plain = tagger(None, **more)
    return (tfgc.estimate(tagger(*arguments, **more), 8).peak_bytes - tfgc.estimate(plain, 8).peak_bytes) / LOGITS


@pytest.mark.parametrize(
    "given",
    [
        (["accuracy"],),
        ({"words": "acc"},),
        (None, ["accuracy"]),
        ([keras.metrics.SparseCategoricalAccuracy()],),
        (["sparse_categorical_accuracy"],),
    ],
)
def test_an_accuracy_copies_the_outputs(given):
    """Keras looks for the largest word in a copy of the logits, in which zeros have no sign."""
    assert 1 < beside(*given) < 2


def test_what_metrics_need_is_added_up():
    assert beside(["accuracy", "sparse_categorical_accuracy"]) == 2 * beside(["accuracy"])
    assert beside([]) == beside(None) == 0


def test_a_metric_that_cannot_be_traced_counts_for_nothing():
    def broken(target, output):
        raise RuntimeError("only eager")

    assert beside([broken]) == 0


def measured(metrics):
    model = tagger(metrics)
    step = tf.function(model.train_step)
    x = tf.constant(np.zeros((8, TOKENS)), "int32")
    model.optimizer.build(model.trainable_variables)
    plain = tfgc.estimate(model, 8)
    return (memory.peak(step, (x, x)) + plain.fixed_bytes) / plain.needed_bytes


@pytest.mark.gate
def test_a_step_with_metrics_needs_no_more_than_predicted():
    """How much less it needs depends on what the executor runs first."""
    assert 0.5 < memory.alone(measured, ["accuracy"]) <= 1.02


@pytest.mark.parametrize(("loss", "buffers"), [("mse", 4), ("mae", 3)])
def test_what_the_value_of_a_loss_still_reads_is_not_overwritten_by_its_gradient(loss, buffers):
    """The difference, its square and the gradient; and, as the square may be late, a double of the difference."""
    graph = annotated.graph_of(tagger(None), 8, None, None, whole_step=True, loss=loss)
    assert peak_of(graph.loss) / LOGITS == pytest.approx(buffers, abs=0.01)
