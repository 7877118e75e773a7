"""The two shallower VGG networks; `keras.applications` has VGG16 and VGG19.

Simonyan & Zisserman 2014, arXiv:1409.1556, table 1, columns A and B; without BatchNormalization.
"""

import keras


def vgg11(image_size: int = 224, classes: int = 1000) -> keras.Model:
    """Build VGG11 (Simonyan & Zisserman 2014, arXiv:1409.1556): eight 3x3 convolutions, three dense layers.

    torchvision publishes 132,863,336 parameters.

    Args:
        image_size: Height and width of the input in pixels, from 32 on; the first dense layer grows with it.
        classes: Scores of the output, before a softmax.
    """
    return _vgg("vgg11", (1, 1, 2, 2, 2), image_size, classes)


def vgg13(image_size: int = 224, classes: int = 1000) -> keras.Model:
    """Build VGG13 (Simonyan & Zisserman 2014, arXiv:1409.1556): ten 3x3 convolutions, three dense layers.

    torchvision publishes 133,047,848 parameters.

    Args:
        image_size: Height and width of the input in pixels, from 32 on; the first dense layer grows with it.
        classes: Scores of the output, before a softmax.
    """
    return _vgg("vgg13", (2, 2, 2, 2, 2), image_size, classes)


def _vgg(name: str, convolutions: tuple[int, ...], image_size: int, classes: int) -> keras.Model:
    inputs = x = keras.Input((image_size, image_size, 3))
    for filters, count in zip((64, 128, 256, 512, 512), convolutions):
        for _ in range(count):
            x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    for _ in range(2):
        x = keras.layers.Dropout(0.5)(keras.layers.Dense(4096, activation="relu")(x))
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name=name)
