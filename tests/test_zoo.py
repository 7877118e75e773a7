"""The zoo: counts against published ones, names, the catalogue without TensorFlow, and that all networks plan."""

import math

import keras
import numpy as np
import pytest

from tfgc import zoo

PUBLISHED = {
    "alexnet": 61_100_840,  # torchvision's documentation, as the four below
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet200": 64_673_832,  # timm
    "densenet161": 28_681_000,  # torchvision's documentation
    "inception_v4": 42_679_816,  # timm
}


def parameters(model):
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


@pytest.mark.parametrize("name", PUBLISHED)
def test_trainable_parameters_are_the_published_ones(name):
    model = zoo.build(name)
    assert parameters(model) == PUBLISHED[name]
    assert model.name == name
    size = 299 if name == "inception_v4" else 224
    assert model.input_shape == (None, size, size, 3)
    assert model.output_shape == (None, 1000)


def test_gpt_has_the_parameters_of_gpt2_and_ties_its_scores_to_its_tokens():
    model = zoo.build("gpt")
    assert parameters(model) == 124_439_808  # the checkpoint gpt2 of Hugging Face
    assert model.output_shape == (None, 1024, 50257)


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
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 7):
        return  # cannot load a model that calls a layer again on what came of its first call
    model.save(tmp_path / "gpt.keras")
    np.testing.assert_array_equal(scores, keras.models.load_model(tmp_path / "gpt.keras")(tokens))


@pytest.mark.parametrize(
    ("name", "count", "millions"),
    [
        # Table 1 of arXiv:1806.09055 prints 3.3, and 3.1 for its own runs of the other two cells.
        ("darts_cifar10", 3_349_342, "3.3"),  # 3.349342 million by the repository quark0/darts
        ("amoebanet_cifar10", 3_145_078, "3.1"),
        ("nasnet_cifar10", 3_830_950, None),  # at 36 channels; nobody publishes it
        ("nasnet_cifar10(20, 32)", 3_061_738, "3.1"),  # at the 32 channels of arXiv:1707.07012
    ],
)
def test_trainable_parameters_of_the_searched_networks(name, count, millions):
    model = zoo.build(name)
    assert parameters(model) == count
    if millions:
        assert f"{count / 1e6:.1f}" == millions
    assert model.input_shape == (None, 32, 32, 3)
    assert model.output_shape == (None, 10)


def test_searched_networks_halve_the_image_twice():
    """By hand: a cell of 4 channels, then one of 8 and one of 16 that halve; DARTS joins four states."""
    model = zoo.build("darts_cifar10(3, 4)", image_size=16)
    cells = [op.output.shape[1:] for op in model.operations if op.name.startswith("concatenate")]
    assert cells[0] == (16, 16, 16)
    assert cells[-1] == (4, 4, 64)
