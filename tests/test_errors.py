"""Every error and warning of tfgc passes between processes whole: through pickle, copy and deepcopy."""

import copy
import inspect
import pickle

import keras
import pytest
import tensorflow as tf

from tfgc import InfeasibleBudgetError, TfgcError, _errors
from tfgc._error_texts import one_line

KINDS = [
    kind
    for _, kind in inspect.getmembers(_errors, inspect.isclass)
    if issubclass(kind, Exception) and kind.__module__ == _errors.__name__
]
COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {n}": lambda error, n=n: pickle.loads(pickle.dumps(error, n))
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


def made(kind):
    """One error of a kind, with all that an error can carry."""
    if kind is InfeasibleBudgetError:
        error = kind(1000, 2048, "dense", " at a batch of one sample", "a smaller network")
    else:
        error = kind("segments=0: must be an integer >= 1", ("a", 3))
    error.own = {"layer": "conv"}
    error.add_note("while planning")
    return error


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_copied_whole(kind):
    error = made(kind)
    for copied, copy_of in COPIES.items():
        other = copy_of(error)
        assert type(other) is kind, copied
        assert other is not error, copied
        assert (str(other), other.args) == (str(error), error.args), copied
        assert vars(other) == vars(error), copied
        assert other.__notes__ == ["while planning"], copied


def test_an_infeasible_budget_keeps_its_figures_and_words():
    error = pickle.loads(pickle.dumps(InfeasibleBudgetError(1000, 2048, "dense")))
    assert (error.budget, error.least, error.node) == (1000, 2048, "dense")
    assert str(error) == (
        "no plan fits in 1,000 bytes: the smallest budget that works is 2,048 bytes, set by node 'dense'. "
        "Use a smaller batch or input, or that budget"
    )


def test_an_infeasible_budget_that_autograph_raises_again_keeps_its_figures():
    error = InfeasibleBudgetError(f"in user code:\n\n    {InfeasibleBudgetError(1000, 2_048_000, 'a/dense:1')}\n")
    assert (error.budget, error.least, error.node) == (1000, 2_048_000, "a/dense:1")
    assert str(error).startswith("in user code:")


class Own(TfgcError):
    """An error of a user's strategy, with other arguments."""

    def __init__(self, layer, *, size):
        super().__init__(f"{layer} needs {size}")
        self.layer, self.size = layer, size


def test_an_error_of_a_subclass_is_copied_whatever_its_arguments():
    other = pickle.loads(pickle.dumps(Own("conv", size=3)))
    assert (str(other), other.layer, other.size) == ("conv needs 3", "conv", 3)


class Fails(keras.layers.Layer):
    """Raises the errors that Keras and TensorFlow wrap in more than one way."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def call(self, x):
        raise self.error


class Two(Exception):
    """AutoGraph cannot make it again from a message alone, and raises an error of its own."""

    def __init__(self, layer, size):
        super().__init__(f"{layer} needs {size}")


def fails(error):
    def function(x):
        raise error

    return function


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fails(ValueError("no luck\nat all")), "ValueError: no luck"),
        (fails(KeyError("size")), "KeyError: 'size'"),
        (fails(Two("conv", 3)), "Two: conv needs 3"),
        (Fails(ValueError("no luck\nat all")), "no luck, in Fails.call()"),
        (Fails(KeyError("size")), "size, in Fails.call()"),
    ],
    ids=["error", "key", "own", "layer", "key in layer"],
)
def test_a_line_says_why_a_call_failed_however_it_was_called(function, said, traced):
    with pytest.raises(Exception, match=r"(?s).") as caught:
        (tf.function(function) if traced else function)(tf.constant(1.0))
    assert one_line(caught.value) == said


@pytest.mark.parametrize(("error", "said"), [(KeyError(), "KeyError"), (KeyError("a\nb"), r"KeyError: 'a\nb'")])
def test_a_key_that_no_layer_missed_is_quoted_as_python_does(error, said):
    assert one_line(error) == said
