"""U-Net, with its long skip connections.

Ronneberger et al. 2015, arXiv:1505.04597, with "same" padding and
BatchNormalization as is common now; the widths and the depth are the paper's.
"""

from typing import Any

import keras


def unet(width: int = 64, depth: int = 4, image_size: int = 128, classes: int = 2) -> keras.Model:
    """Build a U-Net.

    Args:
        width: Channels at full resolution, doubled at each of `depth` levels down.
        depth: Number of times the image is halved.
        image_size: Height and width; divisible by 2 ** depth.
        classes: Channels of the output, a class each pixel.
    """
    x: Any = keras.Input((image_size, image_size, 3))
    inputs = x
    skips = []
    for level in range(depth):
        x = _block(x, width * 2**level)
        skips.append(x)
        x = keras.layers.MaxPooling2D()(x)
    x = _block(x, width * 2**depth)
    for level in reversed(range(depth)):
        x = keras.layers.Conv2DTranspose(width * 2**level, 2, strides=2)(x)
        x = keras.layers.Concatenate()([skips[level], x])
        x = _block(x, width * 2**level)
    return keras.Model(inputs, keras.layers.Conv2D(classes, 1, activation="softmax")(x), name="unet")


def _block(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
    for _ in range(2):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return x
