"""Models on strings, shapes that Keras does not know, and what is done where sizes are not known."""

import warnings

import keras
import memory
import numpy as np
import pytest
import tensorflow as tf
from equality import MODES, fresh, mostly, noise

import tfgc
from tfgc import strategies
from tfgc._core.graph import Spec
from tfgc._tracing import synthetic

pytestmark = pytest.mark.filterwarnings("ignore::tfgc.NotReplayableWarning")
L = keras.layers
WORDS = ["ash", "birch", "cedar", "elm"]
LINES = np.array([["ash birch"], ["cedar"], ["elm elm ash"], ["yew birch"]])
TOKENS = np.array([["ash", "birch", "yew"], ["cedar", "elm", "elm"], ["elm", "ash", "ash"], ["birch", "ash", "yew"]])


def vectorizer(**options):
    layer = L.TextVectorization(**options)
    layer.adapt(LINES)
    return layer


def head(x):
    return L.Dense(1)(L.Dense(8, activation="gelu")(L.Flatten()(x)))


def text(shape=(1,)):
    line = keras.Input(shape, dtype="string", name="line")
    return keras.Model(line, head(L.Embedding(9, 8)(vectorizer(output_sequence_length=6)(line))))


def bag_of_words():
    line = keras.Input((1,), dtype="string")
    return keras.Model(line, head(vectorizer(output_mode="tf_idf")(line)))


def hashed():
    token = keras.Input((3,), dtype="string")
    return keras.Model(token, head(L.Embedding(16, 8)(L.Hashing(16)(token))))


def looked_up(mode, **options):
    token = keras.Input((3,), dtype="string")
    found = L.StringLookup(vocabulary=WORDS, output_mode=mode, **options)(token)
    return keras.Model(token, head(L.Embedding(5, 8)(found) if mode == "int" else found))


def columns():
    number, code, size = (keras.Input((3,), dtype=d, name=n) for n, d in (("n", "int64"), ("c", "int64"), ("s", None)))
    found = L.IntegerLookup(vocabulary=[1, 2, 3], output_mode="multi_hot")(number)
    coded = L.CategoryEncoding(7, output_mode="count")(code)
    binned = L.Flatten()(L.Embedding(4, 2)(L.Discretization([0.0, 1.0])(size)))
    return keras.Model([number, code, size], head(L.Concatenate()([found, coded, binned])))


NUMBERS = np.array([[1, 2, 3], [3, 4, 4], [1, 1, 1], [2, 2, 5]])
FED = {
    "text": (text, LINES),
    "text of scalars": (lambda: text(()), LINES[:, 0]),
    "bag of words": (bag_of_words, LINES),
    "hashed": (hashed, TOKENS),
    "looked up": (lambda: looked_up("int"), TOKENS),
    "multi hot": (lambda: looked_up("multi_hot"), TOKENS),
    "sparse multi hot": (lambda: looked_up("multi_hot", sparse=True), TOKENS),
    "columns": (columns, [NUMBERS, NUMBERS, np.float32(NUMBERS) - 2]),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("text", "columns") else pytest.mark.slow) for n in FED]
)
def test_models_on_strings_and_categories_can_be_planned_in_every_way(name):
    build, x = FED[name]
    model = fresh(build)
    for strategy in strategies.available():
        if strategy in ("manual", "offload", "hybrid"):
            continue
        options = {"budget": "100%"} if strategies.honours_budget(strategy) else {}
        plan = tfgc.plan(model, 4, strategy=strategy, **options)
        assert plan.outlook.plain_bytes > 0
    assert tfgc.plan(model, example=x) == tfgc.plan(model, 4)
    assert tfgc.pareto(model, 4)[-1].outlook.overhead == 0
    assert tfgc.estimate(model, 4).activation_bytes == tfgc.plan(model, 4, strategy="keep_all").outlook.peak_bytes
    composed = x
    for part in tfgc.split(model, 2):
        composed = part(composed)
    np.testing.assert_array_equal(composed, model(x))


QUICK = {("text", "compiled"), ("text", "fit"), ("sparse multi hot", "eager"), ("columns", "graph")}
CROSSED = [
    pytest.param(name, mode, marks=() if (name, mode) in QUICK else pytest.mark.slow)
    for name in FED
    for mode in (*MODES, "fit")
]


@pytest.mark.parametrize(("name", "mode"), CROSSED)
def test_models_on_strings_and_categories_train_as_without(name, mode):
    build, x = FED[name]
    inputs = tuple(map(tf.constant, x)) if isinstance(x, list) else tf.constant(x)
    found = []
    for planned in (False, True):
        model = fresh(build)
        if planned:
            plan = tfgc.plan(model, strategy="uniform", segments=2)
            tfgc.enable(model, plan)
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=mode in ("eager", "compiled"))
        data = tf.data.Dataset.from_tensors((inputs, np.ones((4, 1), "float32"))).repeat(3)
        if mode == "fit":
            losses = model.fit(data, epochs=2, verbose=0, shuffle=False).history["loss"]
        else:
            losses = [float(model.train_on_batch(*batch)) for batch in data]
        found.append((losses, model.get_weights()))
    (plain, weights), (ours, ours_weights) = found
    if mode == "eager":
        assert ours == plain
    np.testing.assert_allclose(ours, plain, rtol=1e-5)
    for a, b in zip(weights, ours_weights):
        if mode == "eager":
            np.testing.assert_array_equal(a, b)
        elif np.asarray(a).dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_verify_takes_strings():
    model = fresh(text)
    plan = tfgc.plan(model, strategy="uniform", segments=2)
    assert tfgc.verify(model, plan, (LINES, np.ones((4, 1))), loss="mse", modes="compiled", steps=2)


def test_noise_for_string_inputs_is_made_of_known_words():
    tokens, _ = synthetic.batch(fresh(lambda: looked_up("int", num_oov_indices=0)), 5)
    assert tokens.shape == (5, 3)
    assert {word.decode() for word in tokens.numpy().ravel()} <= set(WORDS)
    lines, _ = synthetic.batch(fresh(text), 5)
    assert all(len(line.split()) == 8 for line in lines.numpy().ravel())
    plain, _ = synthetic.batch(fresh(hashed), 5)
    assert plain.dtype == tf.string


def test_noise_for_a_dictionary_of_one_input_is_one():
    """Keras warned of an array in its place."""
    inputs = {"x": keras.Input((8,), name="x")}
    model = keras.Model(inputs, L.Dense(2)(inputs["x"]))
    batch, _ = synthetic.batch(model, 16)
    assert list(batch) == ["x"]
    assert model(batch).shape == (16, 2)


def test_noise_has_the_sizes_of_outputs_that_keras_leaves_open():
    flat = L.Lambda(lambda x: tf.reshape(x, [tf.shape(x)[0], -1]), output_shape=(None,))
    _, (targets,) = synthetic.batch(keras.Sequential([keras.Input((4, 8)), L.Dense(2), flat]), 16)
    assert targets.shape == (16, 8)


def bytes_of_lines(count):
    before = memory.info("current")
    lines = tf.fill([count], "text of more than twenty-two letters, which lies on the heap")
    assert lines.dtype == tf.string
    return memory.info("current") - before


def test_a_string_is_counted_as_the_handle_that_the_allocator_is_asked_for():
    """`estimate` by hand: 4 lines, and the indices made of them; and the allocator's own count."""
    assert Spec((None, 3), "string").bytes(4) == 4 * 3 * 24
    count = 2**17 // 3  # 1 MB, a whole chunk
    assert 0 <= memory.alone(bytes_of_lines, count) - 24 * count < 256


@keras.saving.register_keras_serializable("tests")
class Unpatch(L.Layer):
    """Its `compute_output_shape` forgets the sizes of the input."""

    def call(self, x):
        return tf.reshape(x, (tf.shape(x)[0], x.shape[1] * 2, x.shape[2] // 2))

    def compute_output_shape(self, shape):
        return (None, None, None)


class Rows(L.Layer):
    """Its output has as many rows as the batch has of one kind."""

    def call(self, x):
        return tf.boolean_mask(x, x[:, 0] > 0)

    def compute_output_shape(self, shape):
        return (None, shape[1])


def unpatched():
    image = keras.Input((8, 16), name="image")
    x = Unpatch(name="unpatch")(L.Dense(16, activation="gelu")(image))
    return keras.Model(image, L.Softmax()(L.Activation("gelu")(x)))


def test_a_shape_that_keras_does_not_know_is_traced():
    model = fresh(unpatched)
    assert model.get_layer("unpatch").output.shape == (None, None, None)
    for plan in (tfgc.plan(model, 4), tfgc.plan(model, example=np.ones((4, 8, 16), "float32"))):
        assert plan.strategy == "optimal"
        assert plan.outlook.plain_bytes > 0
    told = tfgc.plan(model, 4, strategy="keep_all").outlook.plain_bytes

    class Telling(Unpatch):
        def compute_output_shape(self, shape):
            return (shape[0], shape[1] * 2, shape[2] // 2)

    image = keras.Input((8, 16))
    x = Telling()(L.Dense(16, activation="gelu")(image))
    same = keras.Model(image, L.Softmax()(L.Activation("gelu")(x)))
    assert told == tfgc.plan(same, 4, strategy="keep_all").outlook.plain_bytes


def test_a_shape_that_a_layer_declares_wrongly_is_traced():
    """KerasHub's Gemma 3 declares for its text with images the shape of the images."""

    class Inserted(L.Layer):
        def call(self, images, text):
            return tf.concat([tf.reshape(images, (tf.shape(text)[0], -1, text.shape[-1])), text], axis=1)

        def compute_output_shape(self, shape):
            return shape

    images, text = keras.Input((3, 4, 8), name="images"), keras.Input((10, 8), name="text")
    each = keras.ops.reshape(images, (-1, 4, 8))
    x = Inserted(name="inserted")(images=L.Dense(8)(each), text=L.Dense(8)(text))
    model = keras.Model([images, text], L.Dense(4)(L.MultiHeadAttention(2, 4, name="attention")(x, x)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = tfgc.plan(model, 2, strategy="uniform", segments=2)
    assert [segment.mode for segment in plan.segments] == ["recompute", "keep"]


def test_a_rank_that_a_layer_declares_wrongly_is_traced():
    """KerasHub's Moonshine declares the size of its frequencies for what it makes of positions."""

    class Angles(L.Layer):
        def call(self, x):
            return tf.range(tf.cast(tf.shape(x)[1], x.dtype))[None, :, None] * tf.ones((1, 1, 8), x.dtype)

        def compute_output_shape(self, shape):
            return (8,)

    class Turned(L.Layer):
        def call(self, x, angles):
            return x * tf.cos(angles[:, : x.shape[1], :])

        def compute_output_shape(self, x_shape, angles_shape):
            return x_shape

    x = inputs = keras.Input((10, 8))
    x = Turned(name="turned")(L.Dense(8)(x), Angles(name="angles")(x))
    assert tfgc.plan(keras.Model(inputs, L.Dense(4)(x)), 2).outlook.plain_bytes > 0


def test_a_layer_may_declare_a_tensor_and_return_none():
    """As the encoder of KerasHub's XLNet does."""

    class Encoder(L.Layer):
        def call(self, x):
            return x * 2.0, None

        def compute_output_shape(self, shape):
            return [shape, shape]

    def build():
        x = keras.Input((8,))
        return keras.Model(x, L.Dense(4)(Encoder(name="encoder")(L.Dense(8)(x))[0]))

    model = fresh(build)
    tfgc.enable(model, tfgc.plan(model, 4, strategy="uniform", segments=2))
    x = np.ones((4, 8), "float32")
    np.testing.assert_allclose(model(x, training=True), fresh(build)(x, training=True), rtol=1e-5)


def test_a_custom_layer_behind_one_of_another_dtype():
    """Keras casts what a layer is called on, and not what it is asked for shapes of; found by a random model."""

    class Residual(L.Layer):
        def __init__(self):
            super().__init__()
            self.dense = L.Dense(8)

        def call(self, x):
            return x + self.dense(x)

    x = keras.Input((8,))
    model = keras.Model(x, L.Dense(4)(Residual()(L.Dense(8, dtype="float16")(x))))
    plan = tfgc.plan(model, 4)
    assert plan.outlook.plain_bytes > 0


def test_a_layer_whose_shape_depends_on_values_is_planned_and_trains_as_before():
    def build():
        x = keras.Input((3,))
        return keras.Model(x, L.Dense(4)(Rows(name="picked")(L.Dense(3, "gelu")(L.Dense(3)(x)))))

    plain, model, x = fresh(build), fresh(build), tf.constant(noise(8, 3))
    tfgc.enable(model, tfgc.plan(model, 8, strategy="uniform", segments=2))
    found = []
    for each in (plain, model):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(each(x, training=True) ** 2)
        found.append([loss, *tape.gradient(loss, [v.value for v in each.trainable_variables])])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def sequence():
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    scale = keras.Input((1,), name="scale")
    x = L.Embedding(9, 8)(tokens)
    for i in range(4):
        x = L.Dense(8, activation="gelu", name=f"dense{i}")(x)
    return keras.Model([tokens, scale], L.Dense(1)(x) * L.Reshape((1, 1))(scale))


def test_sizes_once_known_give_the_plan_of_least_peak():
    model = fresh(sequence)
    example = {"tokens": np.zeros((2, 64), "int32"), "scale": np.ones((2, 1), "float32")}
    for plan in (tfgc.plan(model, 2, input_shapes={"tokens": (64,)}), tfgc.plan(model, example=example)):
        assert plan.strategy == "optimal"
        assert plan.outlook.peak_bytes < plan.outlook.plain_bytes


def test_an_example_may_be_of_the_ranks_that_keras_takes():
    """`fit` adds or drops a last dimension of one, and so does a plan by example."""
    model = fresh(text)
    assert tfgc.plan(model, example=LINES[:, 0]) == tfgc.plan(model, example=LINES)
    scalars = fresh(lambda: text(()))
    assert tfgc.plan(scalars, example=LINES) == tfgc.plan(scalars, example=LINES[:, 0])


def test_an_optional_input_may_be_missing_from_the_example():
    x, extra = keras.Input((8,), name="x"), keras.Input((8,), name="extra", optional=True)

    class Both(L.Layer):
        def call(self, x, extra=None):
            return x if extra is None else x + extra

    model = keras.Model([x, extra], L.Dense(1)(Both()(L.Dense(8)(x), extra)))
    example = [np.ones((4, 8), "float32"), None]
    plain = model(example, training=True)
    tfgc.enable(model, tfgc.plan(model, example=example, strategy="uniform", segments=2))
    np.testing.assert_allclose(model(example, training=True), plain, rtol=1e-6)


@pytest.mark.parametrize("batch", mostly(64, modes=[1, 64, None]))
def test_the_default_plan_never_needs_more_than_keeping_all(batch):
    """On small graphs too, where a replay may cost more than it frees, and with layers that cannot run twice."""

    class Noisy(L.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x))

    random = np.random.default_rng(3)
    for _ in range(8):
        inputs = keras.Input((8,))
        tensors = [L.Dense(8)(inputs)]
        for _ in range(random.integers(1, 7)):
            x = tensors[-random.integers(1, min(2, len(tensors)) + 1)]
            kind = random.integers(5)
            make = [L.Dense(64), L.Dense(2), L.BatchNormalization(), Noisy(), L.Activation("gelu")][kind]
            tensors.append(make(x))
        plan = tfgc.plan(keras.Model(inputs, tensors[-1]), batch)
        assert plan.outlook.peak_bytes <= plan.outlook.plain_bytes
        assert plan.outlook.peak_bytes < plan.outlook.plain_bytes or plan.outlook.overhead == 0


def test_a_layer_that_takes_no_open_sizes_is_traced_for_each():
    """In eager loops TensorFlow traces open sizes from the second one on."""
    layers = [L.Conv2D(4, 3), L.UpSampling2D(2, interpolation="bilinear"), L.Conv2D(4, 3), L.GlobalAveragePooling2D()]
    model = fresh(lambda: keras.Sequential([keras.Input((None, None, 3), name="image"), *layers]))
    tfgc.enable(model, tfgc.plan(model, 2, strategy="uniform", segments=2, input_shapes={"image": (8, 8, 3)}))
    for size in (8, 10, 12, 8):
        x = noise(2, size, size, 3)
        gradients = []
        for training in (False, True):  # recomputed in training alone
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=training) ** 2)
            gradients.append(tape.gradient(loss, [v.value for v in model.trainable_variables]))
        for a, b in zip(*gradients):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def in_structures():
    """Inputs of a model, and a batch, in structures that Keras matches."""
    i, j = (keras.Input((8,), name=name) for name in "ij")
    a, b = noise(16, 8), noise(16, 8, seed=2)
    return {
        "nested": ({"u": {"p": i}, "v": [j]}, {"u": {"p": a}, "v": [b]}),
        "a tuple for a list": ([[i], j], ((a,), b)),
        "keys that are no names": ({"first": i, "second": j}, {"first": a, "second": b}),
        "a list for a dict": ({"i": i, "j": j}, [a, b]),
        "a dict for a list": ([j, i], {"i": a, "j": b}),
        "a key more": ({"i": i, "j": j}, {"i": a, "j": b, "label": a}),
    }


@pytest.mark.filterwarnings("ignore:The structure of `inputs`", "ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize("structure", in_structures())
def test_inputs_may_have_any_structure_that_keras_takes(structure):
    """They were matched by name, and the first call of an enabled model spoke of an example that nobody gave."""

    def build():
        inputs, _ = in_structures()[structure]
        first, second = keras.tree.flatten(inputs)
        x = L.Dense(8)(first) - second
        for _ in range(4):
            x = L.Dense(32, activation="gelu")(x)
        return keras.Model(inputs, L.Dense(1)(x))

    batch = keras.tree.map_structure(tf.constant, in_structures()[structure][1])
    plain, model = fresh(build), tfgc.enable(fresh(build), verbose=0)
    with tf.GradientTape():
        np.testing.assert_allclose(model(batch, training=True), plain(batch, training=True), atol=1e-6)
    assert len(tfgc.status(model).plans) == 1


def test_an_example_of_nested_inputs_may_have_targets():
    inputs, batch = in_structures()["nested"]
    (i, j), y = keras.tree.flatten(inputs), noise(16, 1)
    model = keras.Model(inputs, L.Dense(1)(L.Dense(32, activation="gelu")(i * j)))
    expected = tfgc.plan(model, 16)
    for example in (batch, (batch, y), (batch, y, np.ones(16))):
        assert tfgc.plan(model, example=example) == expected
    with pytest.raises(tfgc.OptionError, match="no array for the model's input 'j'"):
        tfgc.plan(model, example={"i": batch["u"]["p"]})


@pytest.mark.parametrize("structure", ["list", "dict", "list for a dict"])
def test_an_example_may_have_weights_of_samples(structure):
    """Without them it was taken, as `fit` takes both."""
    i, j, x = keras.Input((8,), name="i"), keras.Input((8,), name="j"), noise(16, 8)
    inputs, given = {"list": ([i], x), "dict": ({"i": i}, x), "list for a dict": ({"i": i, "j": j}, [x, x])}[structure]
    model = keras.Model(inputs, L.Dense(1)(L.Dense(32, activation="gelu")(i)))
    for example in (given, (given, noise(16, 1)), (given, noise(16, 1), np.ones(16))):
        assert tfgc.plan(model, example=example) == tfgc.plan(model, 16)


@pytest.mark.gate
@pytest.mark.parametrize("mode", mostly("compiled", "graph", modes=["eager", "compiled", "graph", "xla"]))
def test_a_layer_may_return_a_size_that_is_a_number_once_it_is_known(mode):
    """As `SmartReshape2D` of cstmodels does: nothing could be planned then."""

    class Flat(L.Layer):
        def call(self, x):
            return keras.ops.reshape(x, (-1, x.shape[-1])), keras.ops.shape(x)[1]

    class Mean(L.Layer):
        def call(self, x, n):
            return keras.ops.mean(keras.ops.reshape(x, (-1, n, x.shape[-1])), 1)

    def build():
        x, n = Flat(name="flat")(inputs := keras.Input((None, 8)))
        for _ in range(4):
            x = L.Dense(32, activation="gelu")(x)
        return keras.Model(inputs, L.Dense(1)(Mean(name="mean")(x, n=n)))

    x, wide = tf.constant(noise(4, 3, 8)), tf.constant(noise(4, 6, 8))
    plain, model = fresh(build), fresh(build)
    tfgc.enable(model, strategy="uniform", segments=3, verbose=0)

    def step(model, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return [loss, *tape.gradient(loss, [v.value for v in model.trainable_variables])]

    if mode in ("graph", "xla"):
        step = tf.function(step, jit_compile=mode == "xla")
    for batch in (x, wide):
        for one, other in zip(step(plain, batch), step(model, batch), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    assert all(made.plan.segments[0].mode == "recompute" for made in tfgc.status(model).plans)
