"""The widest of the published DenseNets; `keras.applications` has DenseNet121, 169 and 201.

Huang et al. 2016, arXiv:1608.06993, with bottlenecks and a compression of one half.
Strided layers pad as TensorFlow does ("same").
"""

import keras


def densenet161(image_size: int = 224, classes: int = 1000) -> keras.Model:
    """Build DenseNet161 (Huang et al. 2016, arXiv:1608.06993), which grows by 48 channels a layer.

    torchvision publishes 28,681,000 parameters.

    Args:
        image_size: Height and width of the input in pixels, from 32 on.
        classes: Scores of the output, before a softmax.
    """
    inputs = keras.Input((image_size, image_size, 3))
    x = keras.layers.Conv2D(96, 7, strides=2, padding="same", use_bias=False)(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    for block, layers in enumerate((6, 12, 36, 24)):
        if block:
            x = keras.layers.AveragePooling2D(2)(_convolution(x, x.shape[-1] // 2, 1))
        for _ in range(layers):
            y = _convolution(_convolution(x, 4 * 48, 1), 48, 3)
            x = keras.layers.Concatenate()([x, y])
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name="densenet161")


def _convolution(x: keras.KerasTensor, filters: int, size: int | tuple[int, int]) -> keras.KerasTensor:
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return keras.layers.Conv2D(filters, size, padding="same", use_bias=False)(x)
