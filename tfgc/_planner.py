"""From a model to a plan for it."""

from tfgc import _trace, strategies
from tfgc._errors import OptionError, near, whole


def plan(model, batch_size=None, *, strategy=None, budget=None, input_shapes=None, example=None, **options):
    """Choose what to keep and what to recompute when `model` trains.

    Args:
        model: A built `keras.Sequential` or functional model.
        batch_size: Samples in a training batch. Only the bytes in the result
            depend on it: all activations grow with the batch alike.
        strategy: A name from `tfgc.strategies.available()`, or a function
            `plan(graph, **options) -> Plan`. Default: `sqrt`, the one of least
            peak among those built so far; `uniform`, which needs no sizes,
            where the model leaves some open.
        budget: Bytes that a step may use, for strategies that honour one.
        input_shapes: Mapping from input names to shapes without the batch, where
            the model leaves a dimension (sequence length, image size) open.
        example: A batch of inputs (or a pair of inputs and targets) that
            answers both of the above.
        **options: Options of the strategy, such as `segments=8` (uniform,
            sqrt) or `keep=["conv2"]` (manual).

    Returns:
        A `tfgc.Plan`: data to print, save, and give to `tfgc.enable`.

    Raises:
        UnsupportedModelError: If the model is subclassed or not built.
        OptionError: For an unknown strategy or option, or sizes that are open.

    Example:
        >>> import keras, tfgc
        >>> model = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(8) for _ in range(4)])
        >>> plan = tfgc.plan(model, batch_size=32, strategy="uniform", segments=2)
        >>> [len(segment.nodes) for segment in plan.segments]
        [2, 2]
    """
    if batch_size is not None:
        batch_size = whole("batch_size", batch_size)
    if example is not None:
        if input_shapes is not None:
            raise OptionError("give input_shapes or example, not both: either one answers the open dimensions")
        example_batch, input_shapes = _sizes(model, example)
        if batch_size not in (None, example_batch):
            raise OptionError(f"batch_size={batch_size}, but the example is a batch of {example_batch}")
        batch_size = example_batch
    graph = _trace.read(model, batch_size, input_shapes)
    if strategy is None:
        strategy = "sqrt" if graph.sizes_known else "uniform"
    return strategies.apply(strategy, graph, budget=budget, **options)


def _sizes(model, example):
    """Batch size and input shapes of an example batch."""
    inputs = _trace.functional_of(model).inputs
    if isinstance(example, dict):
        unknown = [name for name in example if name not in {t.name for t in inputs}]
        if unknown:
            raise OptionError(
                f"example: the model has no input {unknown[0]!r}{near(unknown[0], [t.name for t in inputs])}"
            )
        arrays = [example[t.name] for t in inputs]
    else:
        arrays = list(example) if isinstance(example, (tuple, list)) else [example]
        if len(arrays) == 2 and len(inputs) == 1:
            arrays = arrays[:1]
        elif len(arrays) == 2 and isinstance(arrays[0], (tuple, list, dict)):
            return _sizes(model, arrays[0])
    if len(arrays) != len(inputs):
        raise OptionError(f"example: the model has {len(inputs)} inputs, the example {len(arrays)}")
    batches = {len(array) for array in arrays}
    if len(batches) != 1:
        raise OptionError(f"example: its inputs have different batch sizes: {sorted(batches)}")
    return batches.pop(), {t.name: tuple(array.shape[1:]) for t, array in zip(inputs, arrays)}
