"""Searched networks for CIFAR-10: NASNet-A, AmoebaNet-A and DARTS, as the DARTS study trains them.

Liu et al. 2018, arXiv:1806.09055, and its code (repository quark0/darts, genotypes NASNet, AmoebaNet and DARTS_V2): 20
cells of 36 channels, doubled by the two that halve the image, at one third and two thirds of the depth. Feng & Huang
(CVPR 2021) measured checkpointing on these three. Without the auxiliary head and without drop path, which are options
of training there and no part of the counts. Strided layers pad as TensorFlow does ("same").
"""

from typing import NamedTuple

import keras


class Cell(NamedTuple):
    """What a cell adds up: in each step two operations, each on the state of that number.

    States 0 and 1 are the outputs of the two cells before; each step makes the next one. The
    output joins the states `joined`.
    """

    steps: tuple[tuple[tuple[str, int], tuple[str, int]], ...]
    joined: tuple[int, ...]


NASNET = (
    Cell(
        (
            (("sep 5", 1), ("sep 3", 0)),
            (("sep 5", 0), ("sep 3", 0)),
            (("avg 3", 1), ("skip", 0)),
            (("avg 3", 0), ("avg 3", 0)),
            (("sep 3", 1), ("skip", 1)),
        ),
        (2, 3, 4, 5, 6),
    ),
    Cell(
        (
            (("sep 5", 1), ("sep 7", 0)),
            (("max 3", 1), ("sep 7", 0)),
            (("avg 3", 1), ("sep 5", 0)),
            (("skip", 3), ("avg 3", 2)),
            (("sep 3", 2), ("max 3", 1)),
        ),
        (4, 5, 6),
    ),
)
AMOEBANET = (
    Cell(
        (
            (("avg 3", 0), ("max 3", 1)),
            (("sep 3", 0), ("sep 5", 2)),
            (("sep 3", 0), ("avg 3", 3)),
            (("sep 3", 1), ("skip", 1)),
            (("skip", 0), ("avg 3", 1)),
        ),
        (4, 5, 6),
    ),
    Cell(
        (
            (("avg 3", 0), ("sep 3", 1)),
            (("max 3", 0), ("sep 7", 2)),
            (("sep 7", 0), ("avg 3", 1)),
            (("max 3", 0), ("max 3", 1)),
            (("thin 7", 0), ("sep 3", 5)),
        ),
        (3, 4, 6),
    ),
)
DARTS = (
    Cell(
        (
            (("sep 3", 0), ("sep 3", 1)),
            (("sep 3", 0), ("sep 3", 1)),
            (("sep 3", 1), ("skip", 0)),
            (("skip", 0), ("dil 3", 2)),
        ),
        (2, 3, 4, 5),
    ),
    Cell(
        (
            (("max 3", 0), ("max 3", 1)),
            (("skip", 2), ("max 3", 1)),
            (("max 3", 0), ("skip", 2)),
            (("skip", 2), ("max 3", 1)),
        ),
        (2, 3, 4, 5),
    ),
)


def nasnet_cifar10(layers: int = 20, width: int = 36, image_size: int = 32, classes: int = 10) -> keras.Model:
    """Build NASNet-A for CIFAR-10 (Zoph et al. 2017, arXiv:1707.07012) as the DARTS study trains it.

    Liu et al. 2018, arXiv:1806.09055, table 1, publish 3.1 million parameters for their run, which this
    has with the 32 channels of Zoph et al.; with the 36 of the repository it has 3.83 million. Zoph et al.
    publish 3.3 million for their own stem and cells.

    Args:
        layers: Cells, from 3 on.
        width: Channels of a state in the first cells.
        image_size: Height and width of the input in pixels; divisible by 4.
        classes: Scores of the output, before a softmax.
    """
    return _network("nasnet_cifar10", NASNET, layers, width, image_size, classes)


def amoebanet_cifar10(layers: int = 20, width: int = 36, image_size: int = 32, classes: int = 10) -> keras.Model:
    """Build AmoebaNet-A for CIFAR-10 (Real et al. 2018, arXiv:1802.01548) as the DARTS study trains it.

    Liu et al. 2018, arXiv:1806.09055, table 1, publish 3.1 million parameters for their run. Real et al.
    publish 3.2 million for their own stem and cells.

    Args:
        layers: Cells, from 3 on.
        width: Channels of a state in the first cells.
        image_size: Height and width of the input in pixels; divisible by 4.
        classes: Scores of the output, before a softmax.
    """
    return _network("amoebanet_cifar10", AMOEBANET, layers, width, image_size, classes)


def darts_cifar10(layers: int = 20, width: int = 36, image_size: int = 32, classes: int = 10) -> keras.Model:
    """Build the second-order DARTS network for CIFAR-10 (Liu et al. 2018, arXiv:1806.09055).

    The repository quark0/darts publishes 3.349342 million parameters, the paper 3.3 million.

    Args:
        layers: Cells, from 3 on.
        width: Channels of a state in the first cells.
        image_size: Height and width of the input in pixels; divisible by 4.
        classes: Scores of the output, before a softmax.
    """
    return _network("darts_cifar10", DARTS, layers, width, image_size, classes)


def _network(name: str, cells: tuple[Cell, ...], layers: int, width: int, image_size: int, classes: int) -> keras.Model:
    inputs = keras.Input((image_size, image_size, 3))
    before = x = _normalized(keras.layers.Conv2D(3 * width, 3, padding="same", use_bias=False)(inputs))
    for i in range(layers):
        reduces = i in (layers // 3, 2 * layers // 3)
        width *= 2 if reduces else 1
        before, x = x, _cell(before, x, cells[reduces], width, strides=2 if reduces else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x), name=name)


def _cell(before: keras.KerasTensor, x: keras.KerasTensor, cell: Cell, width: int, strides: int) -> keras.KerasTensor:
    halved = before.shape[1] != x.shape[1]
    states = [_halve(before, width) if halved else _convolution(before, width), _convolution(x, width)]
    for step in cell.steps:
        pair = [_operation(kind, states[i], strides if i < 2 else 1) for kind, i in step]
        states.append(keras.layers.Add()(pair))
    return keras.layers.Concatenate()([states[i] for i in cell.joined])


def _operation(kind: str, x: keras.KerasTensor, strides: int) -> keras.KerasTensor:
    kind, _, size = kind.partition(" ")
    size = int(size or 1)
    width = x.shape[-1]
    if kind == "skip":
        return _halve(x, width) if strides > 1 else x
    if kind == "max":
        return keras.layers.MaxPooling2D(size, strides, padding="same")(x)
    if kind == "avg":
        return keras.layers.AveragePooling2D(size, strides, padding="same")(x)
    if kind == "dil":
        return _separable(x, size, strides, dilation=2)
    if kind == "sep":
        return _separable(_separable(x, size, strides), size, 1)
    x = keras.layers.ReLU()(x)  # "thin"
    x = keras.layers.Conv2D(width, (1, size), (1, strides), padding="same", use_bias=False)(x)
    return _normalized(keras.layers.Conv2D(width, (size, 1), (strides, 1), padding="same", use_bias=False)(x))


def _separable(x: keras.KerasTensor, size: int, strides: int, dilation: int = 1) -> keras.KerasTensor:
    y = keras.layers.ReLU()(x)
    y = keras.layers.DepthwiseConv2D(size, strides, padding="same", dilation_rate=dilation, use_bias=False)(y)
    return _normalized(keras.layers.Conv2D(x.shape[-1], 1, use_bias=False)(y))


def _convolution(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
    return _normalized(keras.layers.Conv2D(width, 1, use_bias=False)(keras.layers.ReLU()(x)))


def _halve(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
    """Two 1x1 convolutions with stride 2, the second a pixel further, so that all pixels are seen."""
    x = keras.layers.ReLU()(x)
    shifted = keras.layers.Cropping2D(((1, 0), (1, 0)))(x)
    halves = [keras.layers.Conv2D(width // 2, 1, 2, use_bias=False)(y) for y in (x, shifted)]
    return _normalized(keras.layers.Concatenate()(halves))


def _normalized(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.BatchNormalization()(x)
