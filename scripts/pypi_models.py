"""Measure what `tfgc.enable` saves in models of packages on PyPI that no one here wrote, and verify how they train.

Runs the cases of scripts/kerashub.py. Models are small, with random weights and data, and their outputs are held to
noise. Packages are installed into the folder .pypi_models if they are missing, without what they need.

    python scripts/pypi_models.py                       # all models, about an hour on two cores
    python scripts/pypi_models.py gmlp --sides verify   # one of them, this case
    python scripts/pypi_models.py --table               # print the saved results

Results are saved in scripts/results/pypi_models.json.
"""

import importlib

from other_models import Collection, main, numbers

PYPI = Collection(
    "pypi_models",
    (
        "kimm==0.2.5", "k3im==0.1.1", "keras_climate==0.1.1", "medicai==0.0.4", "keras-tcn==3.5.7",
        "keras_efficient_kan==0.1.10",
    ),
    ("kimm", "k3im"),
)  # fmt: skip


def noise(model, batch):
    """A model with a batch and targets of noise."""
    import keras

    def like(tensor):
        return numbers((batch, *tensor.shape[1:]))

    x, y = (keras.tree.map_structure(like, tensors) for tensors in (model.input, model.output))
    x = tuple(x) if isinstance(x, list) else x  # tf.data makes one tensor of a list
    return model, x, y, keras.tree.map_structure(lambda _: "mse", y)


def of_kimm(name, batch=16):
    def build():
        import kimm

        return noise(getattr(kimm.models, name)(weights=None, input_shape=(64, 64, 3), classes=10), batch)

    return build


def other(module, name, batch, *args, **options):
    return lambda: noise(getattr(importlib.import_module(module), name)(*args, **options), batch)


def tcn():
    """Two temporal convolutional networks, the first with BatchNormalization and dropout."""
    import keras
    import tcn

    x = inputs = keras.Input((256, 3))
    x = tcn.TCN(32, return_sequences=True, dropout_rate=0.1, use_batch_norm=True)(x)
    return noise(keras.Model(inputs, keras.layers.Dense(3)(tcn.TCN(32)(x))), 16)


def kan():
    """Five layers of splines."""
    import keras
    from keras_efficient_kan import KANLinear

    x = inputs = keras.Input((64,))
    for _ in range(5):
        x = KANLinear(64)(x)
    return noise(keras.Model(inputs, x), 512)


MODELS = {
    "convnext": of_kimm("ConvNeXtAtto"),
    "efficientnetv2": of_kimm("EfficientNetV2B0"),
    "ghostnetv2": of_kimm("GhostNetV2W100"),
    "inceptionnext": of_kimm("InceptionNeXtTiny"),
    "mobilevitv2": of_kimm("MobileViTV2W050"),
    "regnety": of_kimm("RegNetY002"),
    "cait": other("k3im.cait", "CaiTModel", 64, 32, 4, 10, 64, 4, 4, 128, 2),
    "deepvit": other(
        "k3im.deepvit", "DeepViT", 64, image_size=32, patch_size=4, num_classes=10, dim=64, depth=4, heads=4,
        mlp_dim=128, dropout=0.1,
    ),
    "gmlp": other("k3im.gmlp", "gMLPModel", 64, 32, 4, 64, 4, 0.1, 10),
    "swin": other("k3im.swint", "SwinTModel", 16, (32, 32), (2, 2), 32, 4, 2, 64, True, 0.1, 1, 10),
    "vit3d": other("k3im.vit_3d", "ViT3DModel", 16, 16, 4, 8, 4, 10, 64, 4, 4, 128, "mean"),
    "climax": other(
        "keras_climate.weather.climax", "ClimaX", 8, img_size=(32, 32), num_vars=4, embed_dim=64, depth=4, num_heads=4
    ),
    "convlstm": other(
        "keras_climate.weather.convlstm", "ConvLSTMNowcaster", 8, (6, 32, 32, 1), pred_steps=3, filters=(16, 16)
    ),
    "earthformer": other(
        "keras_climate.weather.earthformer", "Earthformer", 4, (4, 32, 32, 1), pred_steps=2, base_dim=16
    ),
    "fourcastnet": other(
        "keras_climate.weather.fourcastnet", "FourCastNet", 8, img_size=(32, 64), in_chans=3, out_chans=3,
        embed_dim=64, depth=4, num_blocks=4,
    ),
    "segformer": other("keras_climate.remote_sensing.segformer", "SegFormer", 8, (64, 64, 3), num_classes=3),
    "unetr": other("medicai.models", "UNETR", 1, input_shape=(32, 32, 32, 1), encoder_name="vit_base", num_classes=2),
    "tcn": tcn,
    "kan": kan,
}  # fmt: skip


if __name__ == "__main__":
    main(PYPI, __doc__)
