"""What the loss and compiled metrics need is part of the predicted step."""

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import in_turn

import tfgc
from tfgc import zoo
from tfgc._core.buffers import Buffers
from tfgc._core.tensors import peak_of
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
    models = tagger(*arguments, **more), plain
    peaks = [tfgc.estimate(model, 8, optimizer=model.optimizer).peak_bytes for model in models]  # by layers
    return (peaks[0] - peaks[1]) / LOGITS


@pytest.mark.parametrize(
    "given",
    [
        (["accuracy"],),
        ({"words": "acc"},),
        (None, ["accuracy"]),
        ([keras.metrics.SparseCategoricalAccuracy()],),
        (["sparse_categorical_accuracy"],),
        (["ACC"],),
        (["Accuracy"],),
    ],
)
def test_an_accuracy_copies_the_outputs(given):
    """Keras looks for the largest word in a copy of the logits, in which zeros have no sign."""
    assert 1 < beside(*given) < 2


def test_metrics_of_a_sequential_model_count():
    """It has one output, and no names of outputs."""

    def peak(metrics):
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4096, name="last")])
        model.compile("sgd", "mse", metrics=metrics)
        return tfgc.estimate(model, 8).peak_bytes

    assert peak(["mae"]) == peak({"last": "mae"}) > peak(None)


def test_what_metrics_need_is_added_up():
    assert beside(["accuracy", "sparse_categorical_accuracy"]) == 2 * beside(["accuracy"])
    assert beside([]) == beside(None) == 0


def test_a_metric_that_cannot_be_traced_counts_for_nothing():
    def broken(target, output):
        raise RuntimeError("only eager")

    assert beside([broken]) == 0


def test_a_metric_that_keras_does_not_find_counts_for_nothing():
    assert beside(["no_such_metric"]) == 0


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


def loss_of(model):
    return annotated.graph_of(model, 8, None, None, whole_step=True).loss


def as_keras_names_it(targets, outputs):
    return keras.losses.sparse_categorical_crossentropy(targets, outputs)


def test_a_loss_that_is_a_function_counts_as_one_that_is_named():
    assert loss_of(tagger(None, loss=as_keras_names_it)) == loss_of(tagger(None)) != ()


def two_outputs(loss):
    inputs = keras.Input((TOKENS,))
    small, large = keras.layers.Dense(4, name="small")(inputs), keras.layers.Dense(512, name="large")(inputs)
    model = keras.Model(inputs, [small, large])
    model.compile("sgd", loss)
    return model


def test_each_output_has_the_loss_that_it_is_compiled_with():
    small, large = (loss_of(two_outputs({name: "mse"})) for name in ("small", "large"))
    assert 100 * peak_of(small) < peak_of(large) < 128 * peak_of(small)
    assert loss_of(two_outputs(["mse", None])) == small
    both = loss_of(two_outputs("mse"))
    assert both == loss_of(two_outputs(["mse", "mse"]))
    assert max(map(peak_of, (small, large))) < peak_of(both) <= peak_of(small) + peak_of(large)
    other = loss_of(two_outputs({"small": "mse", "large": "mae"}))
    assert peak_of(small) < peak_of(loss_of(two_outputs([None, "mae"]))) < peak_of(other) < peak_of(both)


def test_losses_in_a_list_count_for_a_model_with_one_output():
    name = "sparse_categorical_crossentropy"
    one, two = (loss_of(tagger(None, loss=losses)) for losses in ([name], [name, name]))
    assert one == loss_of(tagger(None))
    assert 1.3 * peak_of(one) < peak_of(two) <= 2 * peak_of(one)
    assert beside(["accuracy"], loss=[name]) == beside(["accuracy"])


def test_losses_and_metrics_by_the_keys_of_outputs_count():
    """Keras takes keys, and names only where outputs have no keys."""

    def step(loss, metrics):
        inputs = keras.Input((TOKENS,))
        outputs = {"x": keras.layers.Dense(4, name="small")(inputs), "y": keras.layers.Dense(512, name="large")(inputs)}
        model = keras.Model(inputs, outputs)
        model.compile("sgd", loss, metrics=metrics)
        return loss_of(model)

    by_name = two_outputs({"small": "mae", "large": "mse"})
    assert step({"x": "mae", "y": "mse"}, None) == loss_of(by_name)
    by_name.compile("sgd", {"small": "mae", "large": "mse"}, metrics={"large": "mae"})
    assert step({"x": "mae", "y": "mse"}, {"y": "mae"}) == loss_of(by_name)


class OfSeven(keras.losses.Loss):
    def call(self, targets, outputs):
        if targets.shape[-1] != 7:
            raise RuntimeError("targets have seven columns")
        return keras.ops.mean(outputs) + keras.ops.mean(targets)


def test_a_compiled_loss_that_needs_other_targets_counts_for_nothing():
    assert loss_of(two_outputs({"small": OfSeven(), "large": "mse"})) == loss_of(two_outputs({"large": "mse"}))


def test_a_compiled_function_that_needs_other_targets_counts_for_nothing():
    """A detector's targets are boxes, and say nothing by their shape."""

    def of_boxes(targets, outputs):
        return outputs * targets["boxes"]

    assert loss_of(two_outputs({"small": of_boxes, "large": "mse"})) == loss_of(two_outputs({"large": "mse"}))
    with pytest.raises(tfgc.UnsupportedModelError, match=r"loss=.*of_boxes.* cannot be computed .* leave loss out"):
        tfgc.plan(two_outputs("mse"), 8, budget="70%", loss=of_boxes)


CLASSES, BATCH = 5000, 256


class Ends(keras.layers.Layer):
    def __init__(self, end):
        super().__init__()
        self.end = end

    def call(self, x):
        return self.end(x)


def classifier(ends, loss, metrics=None):
    """A model whose last layers make probabilities of logits, or not."""
    x = inputs = keras.Input((128,))
    for layer in [keras.layers.Dense(128, "relu"), keras.layers.Dense(CLASSES), *ends]:
        x = layer(x)
    model = keras.Model(inputs, x)
    model.compile("sgd", loss, metrics=metrics, jit_compile=False)
    return model


def peaks_of_loss(*arguments):
    """What the loss needs in graphs and in eager loops, in parts of the outputs."""
    graph = annotated.graph_of(classifier(*arguments), BATCH, None, None, whole_step=True)
    return [peak_of(trace) / (BATCH * CLASSES * 4) for trace in (graph.loss, graph.eager_loss)]


@pytest.mark.parametrize("name", ["sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy"])
def test_a_crossentropy_reads_the_logits_behind_probabilities(name):
    kind = "sigmoid" if name.startswith("binary") else "softmax"
    activation = keras.layers.Activation(kind)
    logits = {"binary": keras.losses.BinaryCrossentropy, "categorical": keras.losses.CategoricalCrossentropy}
    by_class = logits.get(name.split("_")[0], keras.losses.SparseCategoricalCrossentropy)(from_logits=True)
    in_graphs, in_loops = peaks_of_loss([], by_class)
    assert in_graphs <= in_loops  # A loop computes gradients of targets, too.
    # Loops hold both, logits and probabilities, and so do metrics.
    assert peaks_of_loss([activation], name) == pytest.approx([in_graphs, in_loops + 1], abs=0.01)
    assert peaks_of_loss([activation], name, ["mae"])[0] > peaks_of_loss([], by_class, ["mae"])[0] + 0.9
    assert peaks_of_loss([activation, keras.layers.Dropout(0.0)], name)[0] == pytest.approx(in_graphs, abs=0.01)
    # Keras looks at the operation where nothing says more. There is none in a loop.
    found, unseen = peaks_of_loss([Ends(getattr(tf.nn, kind))], name)
    assert found == pytest.approx(in_graphs, abs=0.01)
    assert unseen == pytest.approx(peaks_of_loss([], name)[1])


@pytest.mark.parametrize(
    ("ends", "loss"),
    [
        (["softmax", keras.layers.Reshape((CLASSES,))], "categorical_crossentropy"),
        ([Ends(tf.nn.softmax)], "binary_crossentropy"),
        (["softmax"], "mse"),
    ],
)
def test_a_loss_that_finds_no_logits_reads_the_probabilities(ends, loss):
    layers = [keras.layers.Activation(end) if isinstance(end, str) else end for end in ends]
    assert peaks_of_loss(layers, loss)[0] == peaks_of_loss([], loss)[0] > 2


def test_no_logits_are_found_behind_outputs_that_are_cast():
    """Keras casts them to the dtype of the loss."""

    def peak(dtype):
        last = keras.layers.Activation("softmax", dtype=dtype)
        graph = annotated.graph_of(classifier([last], "categorical_crossentropy"), BATCH, None, None, whole_step=True)
        return peak_of(graph.loss) / (BATCH * CLASSES * 4)

    assert peak("float32") < 1.1 < 2 < peak("bfloat16")


def written_over(model, **options):
    graph = annotated.graph_of(model, BATCH, None, None, whole_step=True, **options)
    return Buffers.of(graph).overwritten_outputs


SPARSE, BY_CLASS = keras.losses.SparseCategoricalCrossentropy, keras.losses.CategoricalCrossentropy


@pytest.mark.parametrize("kind", [SPARSE, BY_CLASS])
def test_a_crossentropy_writes_its_gradient_over_logits_that_nothing_else_reads(kind):
    loss = kind(from_logits=True)
    assert written_over(classifier([], loss))
    assert not written_over(classifier([], loss, ["accuracy"])), "a metric reads them"
    assert not written_over(classifier([keras.layers.ReLU()], loss)), "the gradient of the activation reads them"
    assert not written_over(classifier([], loss), loss=loss), "a loop of one's own may hold them"
    assert not written_over(classifier([], "mse"))


def test_an_output_whose_loss_is_not_known_is_not_taken_for_written_over():
    model = two_outputs({"small": SPARSE(from_logits=True), "large": OfSeven()})
    graph = annotated.graph_of(model, BATCH, None, None, whole_step=True)
    assert [ref.node for ref in graph.written_over] == ["small"]


def language_step(metrics):
    model = zoo.build("gpt(2, 64, 64, 20000)")
    model.compile("sgd", SPARSE(from_logits=True), metrics=metrics, jit_compile=False)
    x, y = tf.ones((8, *model.input_shape[1:]), "int32"), tf.ones((8, *model.output_shape[1:-1]), "int32")
    model.optimizer.build(model.trainable_variables)
    plan = tfgc.plan(model, 8, mode="compiled")  # of layers
    estimate = tfgc.estimate(model, 8, plan=plan)
    tfgc.enable(model, plan)
    return (memory.peak(tf.function(model.train_step), (x, y)) + estimate.fixed_bytes) / estimate.needed_bytes


@pytest.mark.gate
@pytest.mark.parametrize("metrics", [None, ["accuracy"]])
def test_the_peak_of_a_language_model_is_that_of_its_logits(metrics):
    assert 0.85 < memory.alone(language_step, metrics) < 1.05  # 0.57 if the gradient had a buffer of its own


def step_behind_probabilities(kind, loss):
    model = classifier([keras.layers.Activation(kind)], loss)
    x, y = tf.ones((BATCH, 128)), tf.ones((BATCH, *(() if loss.startswith("sparse") else (CLASSES,))))
    model.optimizer.build(model.trainable_variables)
    estimate = tfgc.estimate(model, BATCH)
    measured = memory.peak(tf.function(model.train_step), (x, y)) + estimate.fixed_bytes
    return measured / estimate.needed_bytes


@pytest.mark.gate
@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("softmax", "sparse_categorical_crossentropy"),
        ("softmax", "categorical_crossentropy"),
        ("sigmoid", "binary_crossentropy"),
    ],
)
def test_a_step_with_a_crossentropy_of_probabilities_needs_no_more_than_predicted(kind, loss):
    # Which operations run side by side differs from process to process: one of fifty needed 0.47 for 0.67 to 0.74.
    assert 0.5 < max(memory.alone(step_behind_probabilities, kind, loss) for _ in range(3)) <= 1


def many_outputs(count, loss):
    inputs = keras.Input((128,))
    hidden = keras.layers.Dense(128, "relu")(inputs)
    model = keras.Model(inputs, [keras.layers.Dense(CLASSES)(hidden) for _ in range(count)])
    model.compile("sgd", [loss] * count, jit_compile=False)
    return model


def with_a_long_value(targets, outputs):
    """No gradient flows through most of it."""
    x = tf.stop_gradient(outputs)
    for _ in range(6):
        x = tf.sin(x) * targets
    return tf.reduce_mean(tf.square(targets - outputs), -1) + tf.reduce_mean(x, -1)


def test_what_one_loss_has_freed_is_there_for_the_next():
    one, five = (peak_of(loss_of_batch(many_outputs(n, with_a_long_value))) for n in (1, 5))
    output = BATCH * CLASSES * 4
    assert one < 5.1 * output  # 12 buffers come and go in the value, 2 at a time
    assert five < 13.1 * output
    # What a gradient reads is there for all outputs, since all values may be computed first.
    assert peak_of(loss_of_batch(many_outputs(5, "kl_divergence"))) > (5 * 3.5 + 3) * output


def loss_of_batch(model):
    return annotated.graph_of(model, BATCH, None, None, whole_step=True).loss


def step_of_outputs(count, loss):
    model, x = many_outputs(count, loss), tf.ones((BATCH, 128))
    targets = [tf.fill((BATCH, CLASSES), 0.5)] * count
    model.optimizer.build(model.trainable_variables)
    estimate = tfgc.estimate(model, BATCH)
    measured = memory.peak(tf.function(model.train_step), (x, targets)) + estimate.fixed_bytes
    return measured / estimate.needed_bytes


@pytest.mark.gate
@pytest.mark.parametrize(
    ("loss", "count"),
    in_turn(["mse", "huber", "categorical_crossentropy", "kl_divergence", with_a_long_value], [1, 5, 2]),
)
def test_a_step_with_several_losses_needs_no_more_than_predicted(count, loss):
    assert 0.35 < memory.alone(step_of_outputs, count, loss) <= 1
