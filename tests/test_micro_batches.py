"""`train_step(micro_batches=...)`: the step of the whole batch, in slices."""

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, in_turn, noise
from models import DividedByMask, MayMix, of_length_one

import tfgc
from tfgc._costs import independence

L = keras.layers
X, Y, WEIGHT = noise(10, 8, 8, 2), tf.constant(np.random.default_rng(2).integers(0, 3, 10)), noise(10) ** 2
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Penalized(L.Conv2D):
    """Adds a mean over the samples; before Keras 3.13 its own activity regularizers are sums."""

    def call(self, x):
        y = super().call(x)
        self.add_loss(0.01 * tf.reduce_mean(y**2))
        return y


def convolutions():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            L.Conv2D(4, 3, activation="relu", kernel_regularizer="l2"),
            Penalized(4, 3),
            L.LayerNormalization(),
            L.Flatten(),
            L.Dense(3),
        ]
    )


def words():
    inputs = keras.Input((5,), dtype="int32")
    x = L.Embedding(9, 4)(inputs)
    return keras.Model(inputs, [L.Dense(3, name="label")(L.GlobalAveragePooling1D()(x)), L.Dense(1, name="size")(x)])


CASES = {
    "images": (convolutions, CROSS_ENTROPY, ["accuracy"], X, Y, WEIGHT),
    "sparse gradients": (
        words,
        {"label": CROSS_ENTROPY, "size": "mae"},
        {"size": "mse"},
        tf.constant(np.random.default_rng(3).integers(0, 9, (10, 5)), "int32"),
        {"label": Y, "size": noise(10, 5, 1)},
        None,
    ),
}
WAYS = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "XLA": {"jit_compile": True},
    "taken back": {"on_oom": "replan"},
}


def steps(case, slices, **options):
    """Logs of three steps, the last with a smaller batch, and the weights after them."""
    build, loss, metrics, x, y, weight = CASES[case]
    model = fresh(build)
    step = tfgc.train_step(model, loss, keras.optimizers.Adam(0.01), metrics=metrics, micro_batches=slices, **options)
    logs = []
    for batch in (
        (x, y, weight),
        (x, y, weight),
        tf.nest.map_structure(lambda t: t if t is None else t[:3], (x, y, weight)),
    ):
        step.reset_metrics()
        logs.append({name: float(value) for name, value in step(*batch).items()})
    return logs, [v.numpy() for v in model.weights]


@pytest.mark.gate
@pytest.mark.parametrize(("case", "way"), in_turn(CASES, WAYS))
def test_slices_train_as_the_whole_batch_does(case, way):
    expected, weights = steps(case, 1, **WAYS[way])
    found, after = steps(case, 4, **WAYS[way])
    for one, other in zip(expected, found, strict=True):
        assert other == pytest.approx(one, rel=1e-5)
    for v, w in zip(weights, after, strict=True):
        np.testing.assert_allclose(v, w, rtol=1e-4, atol=1e-6)


class Sum(L.Layer):
    def call(self, x, other=None):
        return x if other is None else x + other


def test_losses_of_outputs_count_the_samples_of_each_slice():
    def two_outputs():
        inputs = keras.Input((4,))
        return keras.Model(inputs, {"a": L.Dense(2, name="a")(inputs), "b": L.Dense(1, name="b")(inputs)})

    steps = [tfgc.train_step(fresh(two_outputs), {"a": "mse", "b": "mse"}, "sgd", micro_batches=n) for n in (1, 3)]
    for samples in (12, 7, 8):  # From the second size on, traces leave it open.
        targets = {"a": noise(samples, 2), "b": noise(samples, 1) * np.arange(samples)[:, None]}
        whole, sliced = (step(noise(samples, 4), targets) for step in steps)
        assert set(whole) == {"loss", "a_loss", "b_loss"}
        for name, value in whole.items():
            np.testing.assert_allclose(sliced[name], value, rtol=1e-5)
        for step in steps:
            step.reset_metrics()


def test_an_optional_input_is_none():
    def build():
        first, second = keras.Input((4,), name="a", optional=True), keras.Input((4,), name="b")
        return keras.Model({"a": first, "b": second}, L.Dense(2)(Sum()(L.Dense(4)(second), first)))

    x, y = {"a": None, "b": noise(12, 4)}, noise(12, 2)
    whole, sliced = (fresh(build) for _ in range(2))
    expected = tfgc.train_step(whole, "mse", "sgd")(x, y)
    found = tfgc.train_step(sliced, "mse", "sgd", micro_batches=3)(x, y)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
    for one, other in zip(whole.weights, sliced.weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


class Added(L.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_mean(x**2))
        return x


def test_layers_add_the_only_loss():
    def build():
        return keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dense(2), Added()])

    x, (whole, sliced) = noise(12, 4), (fresh(build) for _ in range(2))
    expected = tfgc.train_step(whole, None, "sgd")(x, None)
    found = tfgc.train_step(sliced, None, "sgd", micro_batches=3)(x, None)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
    np.testing.assert_allclose(sliced.layers[0].kernel, whole.layers[0].kernel, rtol=1e-5, atol=1e-7)


def test_slices_follow_a_plan(replays):
    plain, model = (fresh(convolutions) for _ in range(2))
    logs = tfgc.train_step(plain, CROSS_ENTROPY, "sgd", plan=tfgc.plan(plain, strategy="keep_all"))(X, Y)
    assert not replays
    step = tfgc.train_step(model, CROSS_ENTROPY, "sgd", plan=tfgc.plan(model, strategy="uniform"), micro_batches=5)
    np.testing.assert_allclose(step(X, Y)["loss"], logs["loss"], rtol=1e-6)
    assert replays
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


def test_scaled_losses_are_added_up():
    keras.config.set_dtype_policy("mixed_float16")
    after = []
    for slices in (1, 5):
        model = fresh(words)
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**10)
        _, loss, _, x, y, _ = CASES["sparse gradients"]
        tfgc.train_step(model, loss, optimizer, micro_batches=slices)(x, y)
        after.append([v.numpy() for v in model.weights])
    for v, w in zip(*after, strict=True):
        np.testing.assert_allclose(v, w, atol=2e-3)


def test_each_slice_draws_random_numbers():
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dropout(0.5), L.Dense(1, use_bias=False)]))
    step = tfgc.train_step(model, "mse", keras.optimizers.SGD(0.0), micro_batches=4)
    losses = {float(step(tf.ones((4, 8)), tf.zeros((4, 1)))["loss"]) for _ in range(3)}
    assert len(losses) == 3


def activation_peak(slices, mode):
    layers = [L.Conv2D(8, 3, padding="same", activation="relu") for _ in range(8)]
    model = keras.Sequential([keras.Input((64, 64, 8)), *layers, L.GlobalAveragePooling2D(), L.Dense(1)])
    plan = tfgc.plan(model, strategy="keep_all")
    step = tfgc.train_step(model, "mse", "sgd", plan=plan, micro_batches=slices, run_eagerly=mode == "eager")
    return memory.peak(step, tf.ones((16, 64, 64, 8)), tf.zeros((16, 1)))


@pytest.mark.gate
@pytest.mark.parametrize("mode", [pytest.param("graph"), pytest.param("eager", marks=pytest.mark.gate)])
def test_activations_need_their_share(mode):
    whole, slices = (memory.alone(activation_peak, n, mode) for n in (1, 8))
    assert slices < 0.2 * whole


def dense_peak(slices):
    """The peak of a step of two large layers above what stays, in weights."""
    model = keras.Sequential([keras.Input((1024,)), *(L.Dense(1024, "tanh") for _ in range(2)), L.Dense(1)])
    step = tfgc.train_step(model, "mse", "sgd", micro_batches=slices)
    return memory.peak(step, tf.ones((16, 1024)), tf.zeros((16, 1))) / (4 * 1024**2)


@pytest.mark.gate
def test_gradients_of_dense_layers_are_in_memory_once():
    """In place of their sum and a slice's part."""
    assert memory.alone(dense_peak, 4) < 2.5


def custom(y, predictions):
    return tf.reduce_sum(tf.square(y - predictions))


def contrastive(y, predictions):
    return tf.reduce_mean(tf.square(predictions - tf.reduce_mean(predictions, 0)), -1)


def mean_of(counted):
    """A loss that is the mean of the crossentropies that count, as the labels say."""

    def loss(labels, predictions):
        counts = tf.cast(counted(labels), "float32")
        each = keras.losses.sparse_categorical_crossentropy(tf.maximum(labels, 0), predictions, from_logits=True)
        return tf.reduce_sum(counts * each) / tf.maximum(tf.reduce_sum(counts), 1.0)

    return loss


def by_frequency(labels, predictions):
    """Crossentropies weighted by how rare their class is in the batch."""
    hot = tf.one_hot(tf.cast(labels, "int32"), 3)
    weights = tf.reduce_sum(hot / (tf.reduce_mean(hot, axis=[0, 1]) + 0.1), axis=-1)
    return weights * keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def by_large_logits(labels, predictions):
    each = keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)
    return each / tf.reduce_mean(1.0 + tf.cast(predictions > 20.0, "float32"))


def where_known(labels, predictions):
    known = tf.math.is_finite(labels)
    errors = tf.where(known, tf.square(tf.where(known, labels, 0.0) - predictions), 0.0)
    return tf.reduce_sum(errors) / tf.reduce_sum(tf.cast(known, "float32"))


def where_not_zero(labels, predictions):
    counts = tf.cast(tf.cast(labels, "bool"), "float32")
    return tf.reduce_sum(counts * tf.square(predictions)) / (tf.reduce_sum(counts) + 1.0)


IGNORING = {
    "ignore_class=-1": keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
    "ignore_class=2": keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=2),
    "-100 is ignored": mean_of(lambda labels: labels != -100),
    "negative ones are ignored": mean_of(lambda labels: labels >= 0),
    "2 is ignored in a branch": mean_of(
        lambda labels: tf.cond(tf.size(labels) > 0, lambda: labels < 2, lambda: labels < 3)
    ),
    "by frequency": by_frequency,
    "by large logits": by_large_logits,
    "not a number is ignored": where_known,
    "zeros are ignored": where_not_zero,
}


@pytest.mark.parametrize("loss", IGNORING)
def test_a_mean_over_what_labels_or_logits_leave_is_refused(loss):
    model = fresh(lambda: keras.Sequential([keras.Input((5, 8)), L.Dense(3)]))
    step = tfgc.train_step(model, IGNORING[loss], "sgd", micro_batches=2)
    labels = (
        tf.zeros((4, 5, 3)) if loss in ("not a number is ignored", "zeros are ignored") else tf.zeros((4, 5), "int32")
    )
    with pytest.raises(tfgc.UnsupportedModelError, match="the loss is not a mean over the samples"):
        step(noise(4, 5, 8), labels)


def test_a_loss_that_branches_in_python_runs_in_eager_slices():
    def chosen(labels, predictions):
        if tf.reduce_any(labels > 100.0):
            raise ValueError("a label is too large")
        return tf.square(labels - predictions)

    losses = []
    for slices in (1, 2):
        model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(1)]))
        step = tfgc.train_step(model, chosen, "sgd", micro_batches=slices, run_eagerly=True)
        losses.append(float(step(noise(4, 8), noise(4, 1))["loss"]))
    np.testing.assert_allclose(*losses, rtol=1e-6)


def picky(labels, predictions):
    """Takes no label below zero, which it looks for."""
    if tf.executing_eagerly():
        assert not np.any(labels < 0.0)
    return tf.where(labels < 0.0, 0.0, tf.square(labels - predictions))


MEANS = {
    "refuses some labels": (picky, "float32"),
    "crossentropy of labels": (keras.losses.SparseCategoricalCrossentropy(), "int32"),
    "-1 does not count": (lambda y, p: tf.where(y == -1.0, 0.0, tf.square(p)), "int32"),
    "hinge": (keras.losses.Hinge(), "float32"),
    "squared hinge of whole numbers": (keras.losses.SquaredHinge(), "int32"),
    "Huber": (keras.losses.Huber(), "float32"),
    "focal": (keras.losses.BinaryFocalCrossentropy(), "float32"),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_over_samples_that_compares_runs_in_slices(name):
    loss, dtype = MEANS[name]
    labels = tf.constant(np.random.default_rng(3).integers(0, 2, (4, 3 if "int" not in dtype else 1)), dtype)
    results = []
    for slices in (1, 2):
        model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(3, activation="softmax")]))
        step = tfgc.train_step(model, loss, "sgd", micro_batches=slices)
        results.append([float(step(noise(4, 8), labels)["loss"]) for _ in range(3)])
    np.testing.assert_allclose(*results, rtol=1e-5)


LOSSES = {
    "mean by weight": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
    "sum": keras.losses.MeanSquaredError(reduction="sum"),
    "own sum": custom,
    "contrastive": contrastive,
}


@tf.custom_gradient
def normalized(y, predictions):
    """Squares; what flows back is divided by its norm over the batch."""
    errors = predictions - y
    return errors**2, lambda upstream: (None, upstream * errors / tf.norm(errors))


def test_a_loss_whose_gradient_is_no_mean_is_refused():
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(1)]))
    step = tfgc.train_step(model, normalized, "sgd", micro_batches=2)
    with pytest.raises(tfgc.UnsupportedModelError, match="the loss has a gradient that is not a mean over the samples"):
        step(noise(4, 8), noise(4, 1))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_is_no_mean_is_refused(loss):
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(1)]))
    step = tfgc.train_step(model, LOSSES[loss], "sgd", micro_batches=2)
    with pytest.raises(
        tfgc.UnsupportedModelError, match=r"the loss is not a mean over the samples.* leave micro_batches"
    ):
        step(noise(4, 8), noise(4, 1), tf.constant([1.0, 2.0, 3.0, 4.0]))


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_a_batch_that_is_not_dense_is_refused(kind):
    model = fresh(lambda: keras.Sequential([keras.Input((2,)), L.Dense(1)]))
    x = {"sparse": tf.sparse.from_dense(noise(4, 2)), "ragged": tf.ragged.constant([[1.0], [2.0, 3.0], [4.0], [5.0]])}
    with pytest.raises(tfgc.UnsupportedModelError, match="Tensor cannot be cut into slices; give dense arrays"):
        tfgc.train_step(model, "mse", "sgd", micro_batches=2)(x[kind], noise(4, 1))


def test_a_frozen_normalization_runs_in_slices():
    def build():
        layers = [L.Dense(4), L.BatchNormalization(trainable=False), L.Dense(1)]
        return keras.Sequential([keras.Input((8,)), *layers])

    whole, sliced = (fresh(build) for _ in range(2))
    for model, slices in ((whole, 1), (sliced, 4)):
        tfgc.train_step(model, "mse", "sgd", micro_batches=slices)(noise(8, 8), noise(8, 1))
    for one, other in zip(whole.weights, sliced.weights, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-7)


def test_a_metric_that_is_one_number_for_a_batch_is_averaged_over_slices():
    def root_of_mean(y, predictions):
        return tf.sqrt(tf.reduce_mean((y - predictions) ** 2))

    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(1)]))
    x, y = noise(8, 8), noise(8, 1, seed=2) * tf.range(8.0)[:, None]
    step = tfgc.train_step(model, "mse", keras.optimizers.SGD(0.0), metrics=[root_of_mean], micro_batches=4)
    found, predictions = float(step(x, y)["root_of_mean"]), model(x)
    of_slices = [root_of_mean(y[i : i + 2], predictions[i : i + 2]) for i in range(0, 8, 2)]
    assert found == pytest.approx(np.mean(of_slices), rel=1e-5)
    assert found != pytest.approx(float(root_of_mean(y, predictions)), rel=0.01)


def test_a_mask_on_an_output_is_refused():
    model = fresh(lambda: keras.Sequential([keras.Input((5,)), L.Embedding(9, 4, mask_zero=True), L.Dense(1)]))
    step = tfgc.train_step(model, "mse", "sgd", micro_batches=2)
    with pytest.raises(tfgc.UnsupportedModelError, match=r"an output of 'sequential.*' has a mask"):
        step(tf.ones((4, 5)), tf.ones((4, 5, 1)))


def test_a_layer_that_mixes_samples_is_named():
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.BatchNormalization(name="bn"), L.Dense(1)]))
    step = tfgc.train_step(model, "mse", "sgd", micro_batches=2)
    with pytest.raises(tfgc.UnsupportedModelError, match=r"layer 'bn' of 'sequential.*' updates its variable"):
        step(noise(4, 8), noise(4, 1))


def thaw(layer):
    layer.trainable = True


def mix(layer):
    layer.mixes = True


@pytest.mark.parametrize(
    ("kind", "change", "run_eagerly"),
    [
        (L.BatchNormalization, thaw, False),
        (MayMix, mix, True),
        pytest.param(L.BatchNormalization, thaw, True, marks=pytest.mark.slow),
        pytest.param(MayMix, mix, False, marks=pytest.mark.slow),
    ],
)
def test_a_layer_that_changed_after_the_first_batch_is_looked_at_again(kind, change, run_eagerly):
    def build():
        return keras.Sequential([keras.Input((4,)), L.Dense(4), kind(name="second"), L.Dense(1)])

    model = fresh(build)
    step = tfgc.train_step(model, "mse", "sgd", micro_batches=4, run_eagerly=run_eagerly)
    model.get_layer("second").trainable = False
    step(noise(8, 4), noise(8, 1))
    change(model.get_layer("second"))
    with pytest.raises(tfgc.UnsupportedModelError, match="layer 'second' of"):
        step(noise(3, 4), noise(3, 1))  # fewer samples than slices, as later batches may have


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_loss_is_looked_at_again_where_a_later_batch_has_weights(run_eagerly):
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(1)]))
    step = tfgc.train_step(model, LOSSES["mean by weight"], "sgd", micro_batches=2, run_eagerly=run_eagerly)
    step(noise(4, 8), noise(4, 1))
    with pytest.raises(tfgc.UnsupportedModelError, match="the loss is not a mean over the samples"):
        step(noise(4, 8), noise(4, 1), tf.constant([1.0, 2.0, 3.0, 4.0]))


def test_what_a_layer_changes_while_it_runs_is_not_looked_at_again(monkeypatch):
    class Counter(L.Layer):
        calls = 0

        def call(self, x):
            self.calls += 1
            return x

    looked, read = [], independence.read
    monkeypatch.setattr(independence, "read", lambda *given: looked.append(given) or read(*given))
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), Counter(), L.Dense(1)]))
    step = tfgc.train_step(model, "mse", "sgd", micro_batches=2, run_eagerly=True)
    for _ in range(3):
        step(noise(4, 8), noise(4, 1))
    assert len(looked) == 1


def test_a_layer_that_mixes_samples_by_a_mask_is_named():
    def masked():
        inputs = keras.Input((6,), dtype="int32")
        x = L.Embedding(9, 4, mask_zero=True)(inputs)
        return keras.Model(inputs, L.Flatten()(DividedByMask(name="divided")([x + 1.0, x])))

    step = tfgc.train_step(fresh(masked), "mse", "sgd", micro_batches=2)
    with pytest.raises(tfgc.UnsupportedModelError, match=r"layer 'divided' of .* mixes the samples"):
        step(np.arange(24).reshape(4, 6) % 9, noise(4, 24))


def test_a_layer_whose_gradient_mixes_samples_is_named():
    layers = [L.Dense(8), L.Lambda(of_length_one, name="normed"), L.Dense(1)]
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), *layers]))
    step = tfgc.train_step(model, "mse", "sgd", micro_batches=2)
    with pytest.raises(tfgc.UnsupportedModelError, match=r"layer 'normed' .* mixes the samples .* in its gradient"):
        step(noise(4, 8), noise(4, 1))


def test_a_variable_whose_gradient_is_its_new_value_is_named():
    policy = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32")
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(8, name="quantized", dtype=policy), L.Dense(1)]))
    step = tfgc.train_step(model, "mse", "sgd", micro_batches=2)
    with pytest.raises(tfgc.UnsupportedModelError, match=r"layer 'quantized' .* whose gradient is its new value"):
        step(noise(4, 8), noise(4, 1))


def test_mistakes_are_explained():
    model = fresh(lambda: keras.Sequential([keras.Input((8,)), L.Dense(1)]))
    for wrong in (0, 2.0, True, "4"):
        with pytest.raises(tfgc.OptionError, match=f"micro_batches={wrong!r}: must be an integer >= 1"):
            tfgc.train_step(model, "mse", "sgd", micro_batches=wrong)
    with pytest.raises(tfgc.OptionError, match="micro_batches=8, but the batch has 4 samples"):
        tfgc.train_step(model, "mse", "sgd", micro_batches=8)(noise(4, 8), noise(4, 1))
    with pytest.raises(tfgc.OptionError, match=r"the arrays of the batch have \[4, 6\] samples"):
        tfgc.train_step(model, "mse", "sgd", micro_batches=2)(noise(4, 8), noise(6, 1))


class Joined(L.Layer):
    def call(self, texts):
        return tf.strings.length(tf.strings.join([texts, "!"]))[:, None]


TEXTS = tf.constant(["a b", "c", "d e f", "b a", "e", "g x c", "h", "a", "b c", "d"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: L.StringLookup(vocabulary=["a", "b", "c"]),
        lambda: L.TextVectorization(vocabulary=["a", "b", "c"], output_sequence_length=3),
    ],
)
def test_slices_of_strings(make):
    def model():
        texts = keras.Input((1,), dtype="string")
        return keras.Model(texts, L.Dense(3)(L.Flatten()(L.Embedding(9, 4)(make()(texts)))))

    texts, (whole, sliced) = TEXTS[:, None], (fresh(model) for _ in range(2))
    expected = tfgc.train_step(whole, CROSS_ENTROPY, "sgd")(texts, Y)
    found = tfgc.train_step(sliced, CROSS_ENTROPY, "sgd", micro_batches=2)(texts, Y)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
    for one, other in zip(whole.weights, sliced.weights, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layer", [L.TextVectorization(vocabulary=["a", "b", "c"]), Joined()])
def test_a_layer_that_may_mix_strings_is_named(layer):
    texts = keras.Input((1,), dtype="string")
    x = L.Embedding(99, 4)(L.Lambda(lambda x: tf.cast(x, "int32"))(layer(texts)))
    model = keras.Model(texts, L.Dense(3)(L.GlobalAveragePooling1D()(L.Reshape((-1, 4))(x))))
    with pytest.raises(tfgc.UnsupportedModelError, match=layer.name):
        tfgc.train_step(model, CROSS_ENTROPY, "sgd", micro_batches=2)(TEXTS[:, None], Y)
