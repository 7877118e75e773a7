"""GPT-2, a causal transformer whose output scores use the embedding of its tokens.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (no arXiv number), on
the blocks of Vaswani et al. 2017, arXiv:1706.03762, normalized before each part. GELU is exact, where
GPT-2 approximates it. Dropout is that of the first GPT; GPT-2's is not published.
"""

from typing import Any

import keras


def gpt(
    blocks: int = 12, width: int = 768, length: int = 1024, vocabulary: int = 50257, heads: int | None = None
) -> keras.Model:
    """Build a causal transformer, GPT-2 small by default (Radford et al. 2019; blocks: arXiv:1706.03762).

    The checkpoint `gpt2` of Hugging Face publishes 124,439,808 parameters.

    Args:
        blocks: Pairs of attention and feed-forward layers.
        width: Features of a token.
        length: Tokens of a text.
        vocabulary: Different tokens.
        heads: Heads of attention; None for one per 64 features, as in all sizes of GPT-2.
    """
    heads = heads or max(1, width // 64)
    tokens = keras.Input((length,), dtype="int32")
    embedding = _tied(vocabulary, width)
    # Counted from the tokens, so that the positions are of the model's graph and no constant outside of it.
    counts: Any = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1)
    positions = keras.layers.Embedding(length, width, embeddings_initializer=_small())(counts - 1)
    x = keras.layers.Dropout(0.1)(keras.layers.Add()([embedding(tokens), positions]))
    for _ in range(blocks):
        y = keras.layers.LayerNormalization(epsilon=1e-5)(x)
        y = keras.layers.MultiHeadAttention(heads, width // heads, dropout=0.1)(y, y, use_causal_mask=True)
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(y)])
        y = keras.layers.LayerNormalization(epsilon=1e-5)(x)
        y = keras.layers.Dense(4 * width, activation="gelu")(y)
        x = keras.layers.Add()([x, keras.layers.Dropout(0.1)(keras.layers.Dense(width)(y))])
    x = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(tokens, embedding(x, reverse=True), name="gpt")


def _small() -> Any:
    return keras.initializers.RandomNormal(stddev=0.02)


def _tied(vocabulary: int, width: int) -> keras.layers.Layer:
    layer = getattr(keras.layers, "ReversibleEmbedding", TiedEmbedding)
    return layer(vocabulary, width, embeddings_initializer=_small())


@keras.saving.register_keras_serializable("tfgc")
class TiedEmbedding(keras.layers.Embedding):
    """What `keras.layers.ReversibleEmbedding` is, for versions of Keras that lack it."""

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        if not reverse:
            return super().call(inputs)
        inputs = keras.ops.cast(inputs, self.compute_dtype)
        return keras.ops.matmul(inputs, keras.ops.transpose(keras.ops.cast(self.embeddings, self.compute_dtype)))

    def compute_output_spec(self, inputs: keras.KerasTensor, reverse: bool = False) -> keras.KerasTensor:
        last = (*inputs.shape[:-1], self.input_dim) if reverse else (*inputs.shape, self.output_dim)
        return keras.KerasTensor(last, dtype=self.compute_dtype)
