"""True shapes of what a call makes, where the layer's own rule does not tell them.

Keras asks a layer's `compute_output_shape` if it has one, and that may leave out what the input sizes
settle. The call is then traced on symbolic tensors of the full sizes: nothing is allocated or run.
"""

import keras
import tensorflow as tf

from tfgc._framework import graph_building
from tfgc._pure import inner_functions


def traced(call, given, declared):
    """The outputs of a call as `keras.KerasTensor`s, with every size that its trace settles.

    Args:
        call: Takes a mapping like `given`, of tensors, and returns a list of tensors.
        given: Mapping from the call's inputs to `KerasTensor`s of known shape.
        declared: The outputs as Keras declares them, `KerasTensor`s. What cannot be traced stays so, with a batch of
            the inputs' size where their first dimension is None.
    """
    try:
        with graph_building.scratch_graph("shapes").as_default(), keras.StatelessScope(), inner_functions.inlined():
            made = call({key: _placeholder(tensor) for key, tensor in given.items()})
    except Exception:  # The layer is the user's code; training it plainly may still work.
        batch = next((tensor.shape[0] for tensor in given.values() if tensor.shape), None)
        return [like(t, (t.shape[0] or batch, *t.shape[1:]) if t.shape else ()) for t in declared]
    return [like(t, _known(t.shape, found.shape)) for t, found in zip(declared, made)]


def like(tensor, shape):
    """A `KerasTensor` as another one, of this shape."""
    return keras.KerasTensor(shape, tensor.dtype, sparse=tensor.sparse)


def _placeholder(tensor):
    kind = tf.compat.v1.sparse_placeholder if tensor.sparse else tf.compat.v1.placeholder
    return kind(tensor.dtype, tensor.shape)


def _known(declared, found):
    """Each size that one of the two shapes tells."""
    if found.rank != len(declared):
        return declared
    return tuple(a if b is None else b for a, b in zip(declared, found))
