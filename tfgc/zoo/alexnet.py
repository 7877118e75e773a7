"""AlexNet in its single-column form, as torchvision has it.

Krizhevsky 2014, arXiv:1404.5997. Below and above 224 pixels torchvision averages to 6x6 before
the classifier; here the first dense layer takes what there is.
"""

import keras


def alexnet(image_size: int = 224, classes: int = 1000) -> keras.Model:
    """Build AlexNet (Krizhevsky 2014, arXiv:1404.5997): five convolutions and three dense layers.

    torchvision publishes 61,100,840 parameters.

    Args:
        image_size: Height and width of the input in pixels, from 63 on; the first dense layer grows with it.
        classes: Scores of the output, before a softmax.
    """
    inputs = keras.Input((image_size, image_size, 3))
    x = keras.layers.ZeroPadding2D(2)(inputs)
    x = keras.layers.Conv2D(64, 11, strides=4, activation="relu")(x)
    x = keras.layers.MaxPooling2D(3, 2)(x)
    x = keras.layers.Conv2D(192, 5, padding="same", activation="relu")(x)
    x = keras.layers.MaxPooling2D(3, 2)(x)
    for filters in (384, 256, 256):
        x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = keras.layers.Flatten()(keras.layers.MaxPooling2D(3, 2)(x))
    for _ in range(2):
        x = keras.layers.Dense(4096, activation="relu")(keras.layers.Dropout(0.5)(x))
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name="alexnet")
