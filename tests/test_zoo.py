"""The zoo: counts, names, the catalogue without TensorFlow, and that all networks plan."""

import inspect
import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import assert_equal, fresh, noise, train

import tfgc
from tfgc import zoo
from tfgc._errors import OptionError


def shaped(name, image_size=None):
    """Build with variables that have shapes and no values: drawing 600 million numbers takes long."""
    with keras.StatelessScope(initialize_variables=False):
        return zoo.build(name, image_size)


def parameters(model):
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def test_gpt_has_the_parameters_of_gpt2():
    model = shaped("gpt")
    assert parameters(model) == 124_439_808  # the checkpoint gpt2 of Hugging Face
    assert model.output_shape == (None, 1024, 50257)


# Keras 3.10, of a model that it has loaded.
@pytest.mark.filterwarnings("ignore:(?s).*structure of `inputs` doesn't match:UserWarning")
@pytest.mark.parametrize("older", [False, True])
def test_gpt_is_causal_and_can_be_saved(older, monkeypatch, tmp_path):
    if older:  # a Keras without the layer
        monkeypatch.delattr(keras.layers, "ReversibleEmbedding", raising=False)
    model = zoo.build("gpt(1, 16, 12, 50)")
    assert len([v for v in model.trainable_variables if tuple(v.shape) == (50, 16)]) == 1
    tokens = np.random.default_rng(0).integers(0, 50, (2, 12))
    scores = np.array(model(tokens))
    changed = tokens.copy()
    changed[:, 8:] = 7
    np.testing.assert_array_equal(scores[:, :8], np.array(model(changed))[:, :8])
    assert np.abs(scores[:, 8:] - np.array(model(changed))[:, 8:]).max() > 1e-3
    model.save(tmp_path / "gpt.keras")
    np.testing.assert_array_equal(scores, keras.models.load_model(tmp_path / "gpt.keras")(tokens))


def test_the_catalogue_describes_the_builders():
    listed = zoo.catalogue()
    own = {network.name: network for network in listed if network.source == "tfgc.zoo"}
    builders = zoo.available()
    assert own.keys() == builders.keys()
    for name, builder in builders.items():
        signature = {key: parameter.default for key, parameter in inspect.signature(builder).parameters.items()}
        assert own[name].arguments == signature
        assert list(own[name].arguments) == list(signature)
        assert own[name].summary == inspect.getdoc(builder).partition("\n")[0]
        assert own[name].summary.endswith(".")
        assert builder.__module__ == f"tfgc.zoo.{own[name].family}"
    names = [network.name for network in listed]
    assert len(names) == len(set(names))


def test_the_catalogue_imports_no_framework():
    code = "import sys, tfgc; tfgc.zoo.catalogue(); print({'tensorflow', 'keras', 'numpy'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "set()"


def test_build_finds_every_listed_network_of_keras(monkeypatch):
    """A newer Keras may have more networks than the list, an older one never fewer."""
    functions = [name for name, f in vars(keras.applications).items() if inspect.isfunction(f)]
    listed = [network.summary for network in zoo.catalogue() if network.source == "keras.applications"]
    assert set(listed) <= {f"keras.applications.{name}." for name in functions}
    for name in functions:
        monkeypatch.setattr(keras.applications, name, lambda name=name, **settings: (name, settings))
    for network in zoo.catalogue():
        if network.source == "keras.applications":
            name, settings = zoo.build(network.name, image_size=96)
            assert network.summary == f"keras.applications.{name}."
            assert settings == {"weights": None, "input_shape": (96, 96, 3)}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet51", "did you mean 'resnet50"),
        ("u_net", "did you mean 'unet'"),
        ("gpt2", "did you mean 'gpt'"),
    ],
)
def test_unknown_names_suggest_near_ones(name, hint):
    with pytest.raises(OptionError, match=hint):
        zoo.build(name)


def test_arguments_shrink_a_network_and_sizes_apply_where_there_are_images():
    assert shaped("unet(8, 2, 16, 7)").output_shape == (None, 16, 16, 7)
    assert shaped("unet", 64).input_shape == (None, 64, 64, 3)
    with pytest.raises(OptionError, match="takes no image_size"):
        zoo.build("gpt(1, 8, 4)", image_size=64)


SMALL = {"sample_cnn": 16, "unet(4, 2)": 16, "gpt(2, 64, 32, 100)": None, "vit(2, 64)": 32}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_network_trains_by_the_optimal_plan_as_plainly(name):
    def build():
        return zoo.build(name, SMALL[name])

    model = fresh(build)
    shape = (2, *model.input_shape[1:])
    x = noise(*shape) if SMALL[name] else tf.range(64) % 100
    x, y = tf.reshape(x, shape), noise(2, *model.output_shape[1:])
    plain = train(model, x, [y], steps=1, lr=1e-6)
    model = fresh(build)
    plan = tfgc.plan(model, 2, strategy="optimal")
    assert plan.outlook.peak_bytes < plan.outlook.plain_bytes
    tfgc.enable(model, plan)
    ours = train(model, x, [y], steps=1, lr=1e-6)
    assert ours[0].loss == plain[0].loss
    assert_equal(plain, ours, exact=True)
