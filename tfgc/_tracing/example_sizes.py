"""Batch size and input sizes of an example batch, in any structure that Keras takes for a model's inputs."""

import reprlib
from typing import Any

import keras
import tensorflow as tf

from tfgc._errors import OptionError, did_you_mean
from tfgc._framework import keras_models
from tfgc._tracing import functional_graphs

EITHER = "give input_shapes or example, not both: either one sets the open dimensions"


def declared_batch(model: keras.Model) -> int | None:
    """Samples in the batches that a model is declared for; None if it leaves that open."""
    return next((t.shape[0] for t in functional_graphs.functional_of(model).inputs if t.shape and t.shape[0]), None)


def shapes(model: keras.Model, example: Any) -> tuple[int | None, dict[str, tuple[int | None, ...]]]:
    """Batch size and input shapes of an example batch, or of the `tf.TensorSpec`s of one, which may leave both open."""
    function = functional_graphs.functional_of(model)
    inputs, arrays = function.inputs, _flat(function, example)
    if len(arrays) != len(inputs):
        raise OptionError(f"example: the model has {len(inputs)} inputs, the example {len(arrays)}")
    for tensor, array in zip(inputs, arrays):
        _check(tensor, array)
    given = {t.name: _fitting(t, array) for t, array in zip(inputs, arrays) if array is not None}
    batches = {shape[0] for shape in given.values() if shape[0] is not None}
    if len(batches) > 1:
        raise OptionError(
            f"example: its inputs have different batch sizes: {sorted(batches)}. The step of such a model is "
            "planned by its operations: leave out strategies that name layers"
        )
    return next(iter(batches), None), {name: shape[1:] for name, shape in given.items()}


def check_sizes(model: keras.Model, example: Any) -> None:
    """Refuse other sizes than those that the model declares, and none, in an example batch that `shapes` takes."""
    function = functional_graphs.functional_of(model)
    for tensor, array in zip(function.inputs, _flat(function, example)):
        if array is not None:
            shape = _fitting(tensor, array)
            if any(declared not in (None, size) for declared, size in zip(tensor.shape[1:], shape[1:])):
                raise OptionError(_unfitting(tensor, array))
            if shape[:1] == (0,):
                raise OptionError(f"example: no samples for input {tensor.name!r}: give a batch as fit takes it")


def lengths_differ(model: keras.Model, example: Any) -> bool:
    """Whether the inputs of a functional model differ in their first sizes, as the atoms and bonds of molecules do."""
    function = functional_graphs.functional_of(model)
    sizes = {tuple(getattr(array, "shape", ()))[:1] for array in _flat(function, example)}
    return len(sizes - {(), (None,)}) > 1


def inputs_of(model: keras.Model, example: Any) -> Any:
    """The inputs of an example batch in the structure in which the model declares them."""
    function = functional_graphs.functional_of(model)
    return function.structured_inputs(_flat(function, example))


def _flat(function: keras_models.FunctionalGraph, example: Any) -> list[Any]:
    """The arrays of an example batch for the inputs, in their order: `x`, or the first of `(x, y)`."""
    refuse_dataset(example)
    for x in (example, example[0] if isinstance(example, tuple) and example else None):
        if x is not None and _is_alike(x, function.input):
            return keras.tree.flatten(x)
    names = [t.name for t in function.inputs]
    if isinstance(example, dict):
        unknown = next((name for name in example if name not in names), None)
        if unknown is not None:
            raise OptionError(f"example: the model has no input {unknown!r}{did_you_mean(unknown, names)}")
        missing = next((name for name in names if name not in example), None)
        if missing is not None:
            raise OptionError(f"example: it has no array for the model's input {missing!r}")
        return [example[name] for name in names]
    arrays = list(example) if isinstance(example, (tuple, list)) else [example]
    # Targets may follow, and weights of samples.
    if len(arrays) in (2, 3) and len(names) == 1:
        return arrays[:1]
    has_inputs = len(arrays) in (2, 3) and isinstance(arrays[0], (tuple, list, dict))
    return _flat(function, arrays[0]) if has_inputs else arrays


def refuse_dataset(batch: Any, name: str = "example") -> None:
    """Raise `OptionError` for a dataset in place of a batch of it, in the argument of this name."""
    if isinstance(batch, tf.data.Dataset):
        raise OptionError(f"{name} is a tf.data.Dataset: give one batch of it, {name}=next(iter(dataset))")


def _is_alike(x: Any, inputs: Any) -> bool:
    """Whether two structures are alike; tuples may stand for lists."""
    try:
        keras.tree.assert_same_structure(keras.tree.lists_to_tuples(x), keras.tree.lists_to_tuples(inputs))
    except (ValueError, TypeError):
        return False
    return True


def _check(tensor: keras.KerasTensor, array: Any) -> None:
    """Refuse what is not an array, or has another number of dimensions than an input."""
    if array is not None and not hasattr(array, "shape"):
        raise OptionError(
            f"example: {reprlib.repr(array)} for input {tensor.name!r} is not an array: give a batch as "
            "fit takes it, x or (x, y), of arrays, tensors or tf.TensorSpecs"
        )
    if array is not None and len(_fitting(tensor, array)) != len(tensor.shape):
        raise OptionError(_unfitting(tensor, array))


def _unfitting(tensor: keras.KerasTensor, array: Any) -> str:
    shape, declared = tuple(array.shape), tuple(tensor.shape)
    hint = "give a batch of such samples"
    if len(shape) == len(declared) - 1:
        hint = "the first dimension is that of the batch: give batches, as of dataset.batch(n), or x[None] for one"
    return f"an array of shape {shape} does not fit input {tensor.name!r} of shape {declared}: {hint}"


def _fitting(tensor: keras.KerasTensor, array: Any) -> tuple[int | None, ...]:
    """The shape of an array as an input takes it: Keras adds or drops a last dimension of one."""
    shape, rank = tuple(array.shape), len(tensor.shape)
    if len(shape) == rank + 1 and shape[-1] == 1:
        return shape[:-1]
    return (*shape, 1) if len(shape) == rank - 1 and tensor.shape[-1] == 1 else shape
