"""Plain convolutional networks on large grey images, whose activations dwarf their weights.

They are the networks of a 2020 TF2 study of gradient checkpointing (repository tf2_gradient_checkpointing).
"""

import keras


def sample_cnn(image_size: int = 256) -> keras.Model:
    """Eleven 5x5 convolutions of 10 to 60 filters at full resolution, and a dense head.

    Args:
        image_size: Height and width of the input, which has one channel.
    """
    inputs = keras.Input((image_size, image_size))
    x = keras.layers.Reshape((image_size, image_size, 1))(inputs)
    filters = (10, 20, 40, 60, 40, 40, 40, 40, 40, 20, 20)
    for i, count in enumerate(filters):
        x = _convolution(x, count, pool=2 if i == len(filters) - 1 else 1)
    return keras.Model(inputs, _head(x), name="sample_cnn")


def big_cnn(partitions: int = 3, blocks: int = 3, image_size: int = 256) -> keras.Model:
    """`partitions` times `blocks` blocks of three 5x5 convolutions (10, 40, 20 filters).

    Args:
        partitions: Parts that the network was cut into by hand in the study.
        blocks: Blocks in each part.
        image_size: Height and width of the input, which has one channel.
    """
    inputs = keras.Input((image_size, image_size))
    x = keras.layers.Reshape((image_size, image_size, 1))(inputs)
    for _ in range(partitions * blocks):
        for count in (10, 40, 20):
            x = _convolution(x, count, pool=1)
    return keras.Model(inputs, _head(x), name="big_cnn")


def _convolution(x: keras.KerasTensor, filters: int, pool: int) -> keras.KerasTensor:
    x = keras.layers.Conv2D(filters, 5, padding="same", activation="relu")(x)
    return keras.layers.MaxPooling2D(pool)(x)


def _head(x: keras.KerasTensor) -> keras.KerasTensor:
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(32, activation="relu")(x)
    return keras.layers.Dense(10)(x)
