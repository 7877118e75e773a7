"""Residual networks of depths that `keras.applications` lacks.

He et al. 2015, arXiv:1512.03385, in the form of torchvision and timm: convolutions have no
bias, and a bottleneck halves the image in its 3x3 convolution. Strided layers pad as TensorFlow
does ("same"), which puts the border a pixel off from PyTorch's at even sizes.
"""

from collections.abc import Callable
from typing import Any

import keras


def resnet18(image_size: int = 224, classes: int = 1000) -> keras.Model:
    """Build ResNet18 (He et al. 2015, arXiv:1512.03385) of eight basic blocks.

    torchvision publishes 11,689,512 parameters.

    Args:
        image_size: Height and width of the input in pixels.
        classes: Scores of the output, before a softmax.
    """
    return _resnet("resnet18", _basic, (2, 2, 2, 2), image_size, classes)


def resnet34(image_size: int = 224, classes: int = 1000) -> keras.Model:
    """Build ResNet34 (He et al. 2015, arXiv:1512.03385) of 16 basic blocks.

    torchvision publishes 21,797,672 parameters.

    Args:
        image_size: Height and width of the input in pixels.
        classes: Scores of the output, before a softmax.
    """
    return _resnet("resnet34", _basic, (3, 4, 6, 3), image_size, classes)


def resnet200(image_size: int = 224, classes: int = 1000) -> keras.Model:
    """Build ResNet200 (He et al. 2016, arXiv:1603.05027, with activations after the sum) of 66 bottlenecks.

    timm publishes 64,673,832 parameters.

    Args:
        image_size: Height and width of the input in pixels.
        classes: Scores of the output, before a softmax.
    """
    return _resnet("resnet200", _bottleneck, (3, 24, 36, 3), image_size, classes)


def _resnet(
    name: str, block: Callable[..., keras.KerasTensor], blocks: tuple[int, ...], image_size: int, classes: int
) -> keras.Model:
    inputs: Any = keras.Input((image_size, image_size, 3))
    x = keras.layers.ReLU()(_convolution(inputs, 64, 7, strides=2))
    x = keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, count in enumerate(blocks):
        for i in range(count):
            x = block(x, 64 * 2**stage, strides=2 if stage and i == 0 else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name=name)


def _basic(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    y = keras.layers.ReLU()(_convolution(x, filters, 3, strides))
    return _add(x, _convolution(y, filters, 3), strides)


def _bottleneck(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    y = keras.layers.ReLU()(_convolution(x, filters, 1))
    y = keras.layers.ReLU()(_convolution(y, filters, 3, strides))
    return _add(x, _convolution(y, 4 * filters, 1), strides)


def _add(x: keras.KerasTensor, y: keras.KerasTensor, strides: int) -> keras.KerasTensor:
    if x.shape[-1] != y.shape[-1] or strides > 1:
        x = _convolution(x, y.shape[-1], 1, strides)
    return keras.layers.ReLU()(keras.layers.Add()([y, x]))


def _convolution(
    x: keras.KerasTensor, filters: int, size: int | tuple[int, int], strides: int = 1
) -> keras.KerasTensor:
    x = keras.layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
    return keras.layers.BatchNormalization()(x)
