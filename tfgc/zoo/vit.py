"""Vision transformer (Dosovitskiy et al. 2021, arXiv:2010.11929), of the size ViT-S/16 (Touvron et al. 2021).

Pools over all patches instead of a class token (Beyer et al. 2022, arXiv:2205.01580). GELU is exact.
"""

from typing import Any

import keras


def vit(blocks: int = 12, width: int = 384, image_size: int = 224, patch: int = 16, classes: int = 1000) -> keras.Model:
    """Build a vision transformer, ViT-S/16 by default (Dosovitskiy et al. 2021, arXiv:2010.11929).

    Args:
        blocks: Pairs of attention and feed-forward layers.
        width: Features of a patch; a head of attention for each 64 of them.
        image_size: Height and width of the images.
        patch: Height and width of a patch.
        classes: Outputs.
    """
    heads = max(1, width // 64)
    images = keras.Input((image_size, image_size, 3))
    x = keras.layers.Conv2D(width, patch, strides=patch)(images)
    x = keras.layers.Reshape((-1, width))(x)
    # Counted from the patches, so that the positions are of the model's graph and no constant outside of it.
    counts: Any = keras.ops.cumsum(keras.ops.ones_like(x[:, :, 0]), axis=1)
    x = keras.layers.Add()([x, keras.layers.Embedding((image_size // patch) ** 2, width)(counts - 1)])
    for _ in range(blocks):
        y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        y = keras.layers.MultiHeadAttention(heads, width // heads)(y, y)
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(y)])
        y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        y = keras.layers.Dropout(0.1)(keras.layers.Dense(4 * width, activation="gelu")(y))
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(keras.layers.Dense(width)(y))])
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(images, keras.layers.Dense(classes)(x), name="vit")
