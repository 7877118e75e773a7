"""The zoo: counts against published ones, names, the catalogue without TensorFlow, and that all networks plan."""

import math

import keras
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
