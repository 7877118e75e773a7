"""Measure what `tfgc.enable` saves in models of KerasHub, and verify that they train as before.

Runs one process for each case: `fit` plain; `tfgc.enable(model)` as the only change; by a plan made ahead from an
example; with budgets of 70 % and 50 % of the plain step. Peaks are those of TensorFlow's allocator, above what was
there before the step: the largest of the last five of eight steps. Models are small, with random weights and data.
KerasHub is installed into the folder .kerashub if it is missing, without what only its preprocessors need.

    python scripts/kerashub.py               # all models, about an hour on two cores
    python scripts/kerashub.py vit gpt2      # these models
    python scripts/kerashub.py --table       # print the saved results

Results are saved in scripts/results/kerashub.json.
"""

from other_models import Collection, main, numbers

KERASHUB = Collection("kerashub", ("keras-hub==0.32.0", "regex", "tokenizers"), ("keras_hub",))


def tokens(batch, length, vocabulary, prefix=""):
    mask = numbers((batch, length), 1) + 1
    mask[:, -length // 8 :] = 0
    return {f"{prefix}token_ids": numbers((batch, length), vocabulary), f"{prefix}padding_mask": mask}


def classes():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


TRANSFORMER = {"num_layers": 4, "num_heads": 4, "hidden_dim": 128, "intermediate_dim": 512}
LAYERS = {"num_layers": 2, "num_heads": 4, "hidden_dim": 128, "intermediate_dim": 512}


def vit():
    from keras_hub.models import ViTBackbone, ViTImageClassifier

    backbone = ViTBackbone(
        image_shape=(64, 64, 3), patch_size=8, num_layers=6, num_heads=4, hidden_dim=128, mlp_dim=512, dropout_rate=0.1
    )
    model = ViTImageClassifier(backbone, num_classes=10)
    return model, numbers((16, 64, 64, 3)), numbers((16,), 10), classes()


def gpt2():
    from keras_hub.models import GPT2Backbone, GPT2CausalLM

    model = GPT2CausalLM(GPT2Backbone(vocabulary_size=1000, max_sequence_length=128, **TRANSFORMER))
    return model, tokens(8, 128, 1000), numbers((8, 128), 1000), classes()


def t5():
    import keras
    from keras_hub.models import T5Backbone

    backbone = T5Backbone(vocabulary_size=1000, **LAYERS)
    decoded = backbone.output["decoder_sequence_output"]
    model = keras.Model(backbone.input, backbone.token_embedding(decoded, reverse=True))
    x = tokens(8, 128, 1000, "encoder_") | tokens(8, 64, 1000, "decoder_")
    return model, x, numbers((8, 64), 1000), classes()


def whisper():
    import keras
    from keras_hub.models import WhisperBackbone

    backbone = WhisperBackbone(vocabulary_size=1000, dropout=0.1, max_encoder_sequence_length=400, **LAYERS)
    decoded = backbone.output["decoder_sequence_output"]
    model = keras.Model(backbone.input, backbone.token_embedding(decoded, reverse=True))
    x = {"encoder_features": numbers((8, 400, 80)), **tokens(8, 64, 1000, "decoder_")}
    return model, x, numbers((8, 64), 1000), classes()


def bert():
    from keras_hub.models import BertBackbone, BertMaskedLM

    model = BertMaskedLM(BertBackbone(vocabulary_size=1000, max_sequence_length=128, **TRANSFORMER))
    x = {**tokens(8, 128, 1000), "segment_ids": numbers((8, 128), 2), "mask_positions": numbers((8, 16), 128)}
    return model, x, numbers((8, 16), 1000), classes()


def deberta():
    from keras_hub.models import DebertaV3Backbone, DebertaV3TextClassifier

    backbone = DebertaV3Backbone(vocabulary_size=1000, max_sequence_length=128, bucket_size=32, **TRANSFORMER)
    return DebertaV3TextClassifier(backbone, num_classes=4), tokens(8, 128, 1000), numbers((8,), 4), classes()


def llama():
    from keras_hub.models import LlamaBackbone, LlamaCausalLM

    backbone = LlamaBackbone(
        vocabulary_size=1000, num_layers=4, num_query_heads=4, num_key_value_heads=2, hidden_dim=128,
        intermediate_dim=384,
    )  # fmt: skip
    return LlamaCausalLM(backbone), tokens(8, 128, 1000), numbers((8, 128), 1000), classes()


def gemma():
    from keras_hub.models import GemmaBackbone, GemmaCausalLM

    backbone = GemmaBackbone(
        vocabulary_size=1000, num_layers=4, num_query_heads=4, num_key_value_heads=1, hidden_dim=128,
        intermediate_dim=512, head_dim=32,
    )  # fmt: skip
    return GemmaCausalLM(backbone), tokens(8, 128, 1000), numbers((8, 128), 1000), classes()


def mixtral():
    from keras_hub.models import MixtralBackbone, MixtralCausalLM

    backbone = MixtralBackbone(
        vocabulary_size=1000, num_layers=4, num_query_heads=4, num_key_value_heads=2, hidden_dim=128,
        intermediate_dim=128, num_experts=4,
    )  # fmt: skip
    return MixtralCausalLM(backbone), tokens(8, 128, 1000), numbers((8, 128), 1000), classes()


def swin():
    import keras
    from keras_hub.models import SwinTransformerBackbone

    backbone = SwinTransformerBackbone(
        image_shape=(64, 64, 3), embed_dim=48, depths=(2, 2, 4), num_heads=(2, 4, 8), window_size=4, patch_size=2
    )
    pooled = keras.layers.GlobalAveragePooling1D()(backbone.output)
    model = keras.Model(backbone.input, keras.layers.Dense(10)(pooled))
    return model, numbers((16, 64, 64, 3)), numbers((16,), 10), classes()


def segformer():
    from keras_hub.models import MiTBackbone, SegFormerBackbone, SegFormerImageSegmenter

    encoder = MiTBackbone(
        image_shape=(64, 64, 3), num_layers=4, hidden_dims=[16, 32, 64, 128], layerwise_depths=[2, 2, 2, 2],
        layerwise_num_heads=[1, 2, 4, 8], layerwise_sr_ratios=[8, 4, 2, 1], layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2], max_drop_path_rate=0.1,
    )  # fmt: skip
    model = SegFormerImageSegmenter(SegFormerBackbone(image_encoder=encoder, projection_filters=64), num_classes=5)
    return model, numbers((8, 64, 64, 3)), numbers((8, 64, 64), 5), classes()


def vitdet():
    from keras_hub.models import ViTDetBackbone

    model = ViTDetBackbone(
        hidden_size=128, num_layers=4, intermediate_dim=512, num_heads=4, global_attention_layer_indices=[1, 3],
        patch_size=8, num_output_channels=32, window_size=4, image_shape=(128, 128, 3),
    )  # fmt: skip
    return model, numbers((4, 128, 128, 3)), numbers((4, 16, 16, 32)), "mse"


def resnet():
    from keras_hub.models import ImageClassifier, ResNetBackbone

    backbone = ResNetBackbone(
        input_conv_filters=[32], input_conv_kernel_sizes=[7], stackwise_num_filters=[64, 96, 128],
        stackwise_num_blocks=[3, 4, 3], stackwise_num_strides=[1, 2, 2], block_type="bottleneck_block",
    )  # fmt: skip
    return ImageClassifier(backbone, 10), numbers((16, 64, 64, 3)), numbers((16,), 10), classes()


def densenet():
    from keras_hub.models import DenseNetBackbone, ImageClassifier

    backbone = DenseNetBackbone(stackwise_num_repeats=[4, 8, 6], growth_rate=16, image_shape=(64, 64, 3))
    return ImageClassifier(backbone, 10), numbers((16, 64, 64, 3)), numbers((16,), 10), classes()


def vae():
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    model = VAEBackbone([32, 64, 64], [2, 2, 2], [64, 64, 32], [2, 2, 2], sample_channels=16)
    x = numbers((4, 64, 64, 3))
    return model, x, x, "mse"


def mmdit():
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT

    model = MMDiT(
        patch_size=2, hidden_dim=128, num_layers=4, num_heads=4, position_size=16, latent_shape=(32, 32, 8),
        context_shape=(None, 64), pooled_projection_shape=(64,), qk_norm="rms_norm",
    )  # fmt: skip
    latent = numbers((4, 32, 32, 8))
    x = {"latent": latent, "context": numbers((4, 32, 64)), "pooled_projection": numbers((4, 64))}
    return model, {**x, "timestep": numbers((4, 1))}, latent, "mse"


MODELS = {
    function.__name__: function
    for function in (
        vit, gpt2, t5, whisper, bert, deberta, llama, gemma, mixtral, swin, segformer, vitdet, resnet, densenet, vae,
        mmdit,
    )
}  # fmt: skip


if __name__ == "__main__":
    main(KERASHUB, __doc__)
