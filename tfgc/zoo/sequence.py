"""Networks over sequences: a transformer encoder and a bidirectional LSTM."""

import keras


def transformer_encoder(
    blocks: int = 6, width: int = 256, length: int = 256, vocabulary: int = 8192, heads: int = 8
) -> keras.Model:
    """Build a pre-norm transformer encoder (Vaswani et al. 2017, arXiv:1706.03762) that predicts tokens.

    Args:
        blocks: Number of blocks of attention and a feed-forward part.
        width: Size of a token's vector, a multiple of `heads`.
        length: Tokens in a sequence.
        vocabulary: Number of different tokens.
        heads: Heads of each attention.
    """
    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, width)(tokens)
    for _ in range(blocks):
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.MultiHeadAttention(heads, width // heads)(y, y)
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(y)])
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(4 * width, activation="gelu")(y)
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(keras.layers.Dense(width)(y))])
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(tokens, keras.layers.Dense(vocabulary)(x), name="transformer_encoder")


def bidirectional_lstm(layers: int = 3, width: int = 128, length: int = 128, vocabulary: int = 8192) -> keras.Model:
    """Build stacked bidirectional LSTMs over token embeddings, with one score for each sequence.

    Args:
        layers: Number of LSTMs.
        width: Units of each LSTM in one direction, and size of a token's vector.
        length: Tokens in a sequence.
        vocabulary: Number of different tokens.
    """
    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, width)(tokens)
    for i in range(layers):
        lstm = keras.layers.LSTM(width, return_sequences=i < layers - 1)
        x = keras.layers.Dropout(0.1)(keras.layers.Bidirectional(lstm)(x))
    return keras.Model(tokens, keras.layers.Dense(1, activation="sigmoid")(x), name="bidirectional_lstm")
