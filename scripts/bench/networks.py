"""The networks of papers that only the tables train; tables name the others as `tfgc.zoo.build` does.

Strided layers pad as TensorFlow does ("same"). `PARAMETERS` are the counts that torchvision, timm and the DARTS study
publish, which a test compares with.
"""

import keras
from keras import layers as L

PARAMETERS = {
    "alexnet": 61_100_840,  # torchvision, as all to densenet161 but resnet200
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet200": 64_673_832,  # timm
    "densenet161": 28_681_000,
    "inception_v4": 42_679_816,  # timm
    "darts_cifar10": 3_349_342,  # repository quark0/darts
    "amoebanet_cifar10": 3_145_078,  # printed as 3.1 million
    "nasnet_cifar10": 3_830_950,  # nobody publishes it at 36 channels
}


def alexnet(image_size=224):
    """AlexNet in one column (Krizhevsky 2014, arXiv:1404.5997)."""
    inputs = keras.Input((image_size, image_size, 3))
    x = L.ZeroPadding2D(2)(inputs)
    x = L.Conv2D(64, 11, strides=4, activation="relu")(x)
    x = L.MaxPooling2D(3, 2)(x)
    x = L.Conv2D(192, 5, padding="same", activation="relu")(x)
    x = L.MaxPooling2D(3, 2)(x)
    for filters in (384, 256, 256):
        x = L.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = L.Flatten()(L.MaxPooling2D(3, 2)(x))
    for _ in range(2):
        x = L.Dense(4096, activation="relu")(L.Dropout(0.5)(x))
    return keras.Model(inputs, L.Dense(1000)(x), name="alexnet")


def vgg11(image_size=224):
    """VGG11 (Simonyan & Zisserman 2014, arXiv:1409.1556, column A)."""
    return _vgg("vgg11", (1, 1, 2, 2, 2), image_size)


def vgg13(image_size=224):
    """VGG13 (Simonyan & Zisserman 2014, arXiv:1409.1556, column B)."""
    return _vgg("vgg13", (2, 2, 2, 2, 2), image_size)


def _vgg(name, convolutions, image_size):
    inputs = x = keras.Input((image_size, image_size, 3))
    for filters, count in zip((64, 128, 256, 512, 512), convolutions):
        for _ in range(count):
            x = L.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = L.MaxPooling2D()(x)
    x = L.Flatten()(x)
    for _ in range(2):
        x = L.Dropout(0.5)(L.Dense(4096, activation="relu")(x))
    return keras.Model(inputs, L.Dense(1000)(x), name=name)


def resnet18(image_size=224):
    """ResNet18 (He et al. 2015, arXiv:1512.03385)."""
    return _resnet("resnet18", _basic, (2, 2, 2, 2), image_size)


def resnet34(image_size=224):
    """ResNet34 (He et al. 2015, arXiv:1512.03385)."""
    return _resnet("resnet34", _basic, (3, 4, 6, 3), image_size)


def resnet200(image_size=224):
    """ResNet200 (He et al. 2016, arXiv:1603.05027, with activations after the sum)."""
    return _resnet("resnet200", _bottleneck, (3, 24, 36, 3), image_size)


def _resnet(name, block, blocks, image_size):
    inputs = keras.Input((image_size, image_size, 3))
    x = L.MaxPooling2D(3, 2, padding="same")(L.ReLU()(_normal(inputs, 64, 7, strides=2)))
    for stage, count in enumerate(blocks):
        for i in range(count):
            x = block(x, 64 * 2**stage, strides=2 if stage and i == 0 else 1)
    return keras.Model(inputs, L.Dense(1000)(L.GlobalAveragePooling2D()(x)), name=name)


def _basic(x, filters, strides):
    y = L.ReLU()(_normal(x, filters, 3, strides))
    return _add(x, _normal(y, filters, 3), strides)


def _bottleneck(x, filters, strides):
    y = L.ReLU()(_normal(x, filters, 1))
    y = L.ReLU()(_normal(y, filters, 3, strides))
    return _add(x, _normal(y, 4 * filters, 1), strides)


def _add(x, y, strides):
    if x.shape[-1] != y.shape[-1] or strides > 1:
        x = _normal(x, y.shape[-1], 1, strides)
    return L.ReLU()(L.Add()([y, x]))


def _normal(x, filters, size, strides=1, padding="same"):
    return L.BatchNormalization()(L.Conv2D(filters, size, strides, padding, use_bias=False)(x))


def densenet161(image_size=224):
    """DenseNet161 (Huang et al. 2016, arXiv:1608.06993), which grows by 48 channels a layer."""
    inputs = keras.Input((image_size, image_size, 3))
    x = L.MaxPooling2D(3, 2, padding="same")(L.ReLU()(_normal(inputs, 96, 7, strides=2)))
    for block, count in enumerate((6, 12, 36, 24)):
        if block:
            x = L.AveragePooling2D(2)(_activated(x, x.shape[-1] // 2, 1))
        for _ in range(count):
            x = L.Concatenate()([x, _activated(_activated(x, 4 * 48, 1), 48, 3)])
    x = L.GlobalAveragePooling2D()(L.ReLU()(L.BatchNormalization()(x)))
    return keras.Model(inputs, L.Dense(1000)(x), name="densenet161")


def _activated(x, filters, size):
    return L.Conv2D(filters, size, padding="same", use_bias=False)(L.ReLU()(L.BatchNormalization()(x)))


def inception_v4(image_size=299):
    """Inception v4 (Szegedy et al. 2016, arXiv:1602.07261, figures 3 to 9), with the widths of timm."""
    inputs = keras.Input((image_size, image_size, 3))
    x = _chain(inputs, (32, 3, 2, "valid"), (32, 3, 1, "valid"), (64, 3))
    x = _join(_pool(x), _chain(x, (96, 3, 2, "valid")))
    short = _chain(x, (64, 1), (96, 3, 1, "valid"))
    x = _join(short, _chain(x, (64, 1), (64, (1, 7)), (64, (7, 1)), (96, 3, 1, "valid")))
    x = _join(_chain(x, (192, 3, 2, "valid")), _pool(x))
    for _ in range(4):
        x = _join(
            _chain(x, (96, 1)),
            _chain(x, (64, 1), (96, 3)),
            _chain(x, (64, 1), (96, 3), (96, 3)),
            _chain(_average(x), (96, 1)),
        )
    x = _join(_chain(x, (384, 3, 2, "valid")), _chain(x, (192, 1), (224, 3), (256, 3, 2, "valid")), _pool(x))
    for _ in range(7):
        x = _join(
            _chain(x, (384, 1)),
            _chain(x, (192, 1), (224, (1, 7)), (256, (7, 1))),
            _chain(x, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
            _chain(_average(x), (128, 1)),
        )
    x = _join(
        _chain(x, (192, 1), (192, 3, 2, "valid")),
        _chain(x, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2, "valid")),
        _pool(x),
    )
    for _ in range(3):
        near, far = _chain(x, (384, 1)), _chain(x, (384, 1), (448, (3, 1)), (512, (1, 3)))
        split = [_chain(y, (256, size)) for y in (near, far) for size in ((1, 3), (3, 1))]
        x = _join(_chain(x, (256, 1)), *split, _chain(_average(x), (256, 1)))
    x = L.Dropout(0.2)(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, L.Dense(1000)(x), name="inception_v4")


def _chain(x, *convolutions):
    for how in convolutions:
        x = L.ReLU()(_normal(x, *how))
    return x


def _pool(x):
    return L.MaxPooling2D(3, 2)(x)


def _average(x):
    return L.AveragePooling2D(3, 1, padding="same")(x)


def _join(*branches):
    return L.Concatenate()(list(branches))


# Searched cells as the DARTS study trains them (Liu et al. 2018, arXiv:1806.09055, genotypes NASNet, AmoebaNet and
# DARTS_V2 of repository quark0/darts), without the auxiliary head and drop path. In each step two operations, each on
# the state of that number; states 0 and 1 are the two cells before. The output joins the states behind the arrow.
CELLS = {
    "nasnet_cifar10": (
        "sep5:1+sep3:0 sep5:0+sep3:0 avg3:1+skip:0 avg3:0+avg3:0 sep3:1+skip:1 > 2 3 4 5 6",
        "sep5:1+sep7:0 max3:1+sep7:0 avg3:1+sep5:0 skip:3+avg3:2 sep3:2+max3:1 > 4 5 6",
    ),
    "amoebanet_cifar10": (
        "avg3:0+max3:1 sep3:0+sep5:2 sep3:0+avg3:3 sep3:1+skip:1 skip:0+avg3:1 > 4 5 6",
        "avg3:0+sep3:1 max3:0+sep7:2 sep7:0+avg3:1 max3:0+max3:1 thin7:0+sep3:5 > 3 4 6",
    ),
    "darts_cifar10": (
        "sep3:0+sep3:1 sep3:0+sep3:1 sep3:1+skip:0 skip:0+dil3:2 > 2 3 4 5",
        "max3:0+max3:1 skip:2+max3:1 max3:0+skip:2 skip:2+max3:1 > 2 3 4 5",
    ),
}


def nasnet_cifar10(image_size=32):
    """NASNet-A for CIFAR-10 (Zoph et al. 2017, arXiv:1707.07012)."""
    return _searched("nasnet_cifar10", image_size)


def amoebanet_cifar10(image_size=32):
    """AmoebaNet-A for CIFAR-10 (Real et al. 2018, arXiv:1802.01548)."""
    return _searched("amoebanet_cifar10", image_size)


def darts_cifar10(image_size=32):
    """The second-order DARTS network for CIFAR-10 (Liu et al. 2018, arXiv:1806.09055)."""
    return _searched("darts_cifar10", image_size)


def _searched(name, image_size, count=20, width=36):
    inputs = keras.Input((image_size, image_size, 3))
    before = x = _normal(inputs, 3 * width, 3)
    for i in range(count):
        reduces = i in (count // 3, 2 * count // 3)
        width *= 2 if reduces else 1
        before, x = x, _cell(before, x, CELLS[name][reduces], width, strides=2 if reduces else 1)
    return keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling2D()(x)), name=name)


def _cell(before, x, cell, width, strides):
    halved = before.shape[1] != x.shape[1]
    states = [_halve(before, width) if halved else _normal(L.ReLU()(before), width, 1), _normal(L.ReLU()(x), width, 1)]
    steps, joined = cell.split(" > ")
    for step in steps.split():
        pair = (operation.split(":") for operation in step.split("+"))
        made = [_operation(kind, states[int(i)], strides if int(i) < 2 else 1) for kind, i in pair]
        states.append(L.Add()(made))
    return L.Concatenate()([states[int(i)] for i in joined.split()])


def _operation(kind, x, strides):
    width = x.shape[-1]
    if kind == "skip":
        return _halve(x, width) if strides > 1 else x
    kind, size = kind[:-1], int(kind[-1])
    if kind == "max":
        return L.MaxPooling2D(size, strides, padding="same")(x)
    if kind == "avg":
        return L.AveragePooling2D(size, strides, padding="same")(x)
    if kind == "dil":
        return _separable(x, size, strides, dilation=2)
    if kind == "sep":
        return _separable(_separable(x, size, strides), size, 1)
    x = L.Conv2D(width, (1, size), (1, strides), padding="same", use_bias=False)(L.ReLU()(x))  # "thin"
    return _normal(x, width, (size, 1), (strides, 1))


def _separable(x, size, strides, dilation=1):
    y = L.DepthwiseConv2D(size, strides, padding="same", dilation_rate=dilation, use_bias=False)(L.ReLU()(x))
    return _normal(y, x.shape[-1], 1)


def _halve(x, width):
    """Two 1x1 convolutions with stride 2, the second a pixel further, so that all pixels are seen."""
    x = L.ReLU()(x)
    halves = [L.Conv2D(width // 2, 1, 2, use_bias=False)(y) for y in (x, L.Cropping2D(((1, 0), (1, 0)))(x))]
    return L.BatchNormalization()(L.Concatenate()(halves))
