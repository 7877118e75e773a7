"""Inception v4; `keras.applications` has v3 and Inception-ResNet v2.

Szegedy et al. 2016, arXiv:1602.07261, figures 3 to 9. A convolution is without bias and followed by BatchNormalization
and ReLU. Where the paper's widths and those of its code differ, the widths are those of timm, which follows the code.
"""

from typing import Any

import keras


def inception_v4(image_size: int = 299, classes: int = 1000) -> keras.Model:
    """Build Inception v4 (Szegedy et al. 2016, arXiv:1602.07261).

    timm publishes 42,679,816 parameters.

    Args:
        image_size: Height and width of the input in pixels, from 75 on.
        classes: Scores of the output, before a softmax.
    """
    inputs = keras.Input((image_size, image_size, 3))
    x = _stem(inputs)
    for _ in range(4):
        x = _inception_a(x)
    x = _reduction_a(x)
    for _ in range(7):
        x = _inception_b(x)
    x = _reduction_b(x)
    for _ in range(3):
        x = _inception_c(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dropout(0.2)(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name="inception_v4")


def _stem(x: Any) -> keras.KerasTensor:
    x = _convolution(x, 32, 3, 2, "valid")
    x = _convolution(x, 32, 3, 1, "valid")
    x = _convolution(x, 64, 3)
    x = _join(_pool(x), _convolution(x, 96, 3, 2, "valid"))
    short = _convolution(_convolution(x, 64, 1), 96, 3, 1, "valid")
    long = _chain(x, (64, 1), (64, (1, 7)), (64, (7, 1)))
    x = _join(short, _convolution(long, 96, 3, 1, "valid"))
    return _join(_convolution(x, 192, 3, 2, "valid"), _pool(x))


def _inception_a(x: keras.KerasTensor) -> keras.KerasTensor:
    return _join(
        _chain(x, (96, 1)),
        _chain(x, (64, 1), (96, 3)),
        _chain(x, (64, 1), (96, 3), (96, 3)),
        _chain(_average(x), (96, 1)),
    )


def _inception_b(x: keras.KerasTensor) -> keras.KerasTensor:
    return _join(
        _chain(x, (384, 1)),
        _chain(x, (192, 1), (224, (1, 7)), (256, (7, 1))),
        _chain(x, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
        _chain(_average(x), (128, 1)),
    )


def _inception_c(x: keras.KerasTensor) -> keras.KerasTensor:
    near = _chain(x, (384, 1))
    far = _chain(x, (384, 1), (448, (3, 1)), (512, (1, 3)))
    return _join(
        _chain(x, (256, 1)),
        *(_convolution(y, 256, size) for y in (near, far) for size in ((1, 3), (3, 1))),
        _chain(_average(x), (256, 1)),
    )


def _reduction_a(x: keras.KerasTensor) -> keras.KerasTensor:
    return _join(
        _convolution(x, 384, 3, 2, "valid"),
        _convolution(_chain(x, (192, 1), (224, 3)), 256, 3, 2, "valid"),
        _pool(x),
    )


def _reduction_b(x: keras.KerasTensor) -> keras.KerasTensor:
    return _join(
        _convolution(_chain(x, (192, 1)), 192, 3, 2, "valid"),
        _convolution(_chain(x, (256, 1), (256, (1, 7)), (320, (7, 1))), 320, 3, 2, "valid"),
        _pool(x),
    )


def _chain(x: keras.KerasTensor, *convolutions: tuple[int, int | tuple[int, int]]) -> keras.KerasTensor:
    for filters, size in convolutions:
        x = _convolution(x, filters, size)
    return x


def _convolution(
    x: keras.KerasTensor, filters: int, size: int | tuple[int, int], strides: int = 1, padding: str = "same"
) -> keras.KerasTensor:
    x = keras.layers.Conv2D(filters, size, strides, padding, use_bias=False)(x)
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(x))


def _pool(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.MaxPooling2D(3, 2)(x)


def _average(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.AveragePooling2D(3, 1, padding="same")(x)


def _join(*branches: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.Concatenate()(list(branches))
