"""A training step of a model, enabled or not, that is run again and again from given states."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._core import text
from tfgc._error_texts import one_line
from tfgc._errors import TfgcError, UnsupportedModelError
from tfgc._framework import graph_optimizer, keras_models, keras_state
from tfgc._framework.layer_values import leaves, plain_variables
from tfgc._framework.memory_counts import OUT_OF_MEMORY
from tfgc._pairs import obstacles
from tfgc._planning.request import Request
from tfgc._training.rewritten_function import RewrittenFunction, Settings
from tfgc._verify import copies
from tfgc._verify.differences import Steps

# How many roundings values are moved by, to see how far plain steps then differ.
_ROUNDINGS = 4
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
# What a step is given: inputs, targets and weights of samples, each may be None.
Data = tuple[Any, Any, Any]


class Step:
    """One training step of a model on a batch."""

    once: Callable[..., dict[tuple[str, str], Any]]  # runs it on data; returns results by kind and name, without states
    loss: str  # what is minimized, in words
    request = Request()  # how it is planned as a whole
    draws = False  # whether it draws from TensorFlow's hidden random state, which only eager steps can repeat

    def __init__(self, model: keras.Model, data: Data) -> None:
        self.model, self.data = model, data
        self.states: dict[str, Any] = {}  # every variable that the step may change, by name

    def kind(self, variable: Any) -> str:
        """What a variable is called in the verdict."""
        return "seed" if "seed_generator_state" in variable.name else "state"

    @functools.cached_property
    def watched(self) -> dict[str, tf.Variable]:
        """The trainable variables by name."""
        return {name: v if isinstance(v, tf.Variable) else v.value for name, v in self.states.items() if v.trainable}

    def run(
        self,
        mode: str,
        steps: int,
        befores: list[dict[str, Any]] | None = None,
        data: Data | None = None,
        rewritten: bool = False,
    ) -> tuple[list[dict[str, Any]], Steps]:
        """Run some steps from the states in `befores`, or one after the other; return the states and all results.

        Those `rewritten` are planned as wholes, as `fit` runs steps in a graph.
        """
        function: Callable = self.once
        if rewritten:
            function = self._rewritten()
        elif mode in ("graph", "xla"):
            function = tf.function(functools.partial(function), autograph=False, jit_compile=mode == "xla")
        given, outcomes = befores or [self.read()], []
        for number in range(steps):
            if number == len(given):
                given.append(self._trained(self.read()))
            self.write(given[number])
            if self.draws:
                tf.random.set_seed(number)
            found = function(*(data or self.data))
            found |= {
                (self.kind(v), name): v.value if isinstance(v, keras.Variable) else v for name, v in self.states.items()
            }
            outcomes.append({key: _plain_value(value) for key, value in found.items()})
        if befores is not None:
            self.write(befores[0])
        return given, outcomes

    def _rewritten(self) -> RewrittenFunction:
        settings = Settings({"autograph": False}, {}, self.request, verbose=False)
        return RewrittenFunction(functools.partial(self.once), settings)

    def bits(self, befores: list[dict[str, Any]]) -> tuple[Steps, Steps, Steps]:
        """The results of two runs of plain steps and one of steps planned as wholes, with the graph optimizer off."""
        count = len(befores)
        with graph_optimizer.off():
            plain, again = (self.run("graph", count, befores)[1] for _ in range(2))
            return plain, again, self.run("graph", count, befores, rewritten=True)[1]

    def unlike_copies(self, before: dict[str, Any]) -> list[str]:
        """The operations of the step, planned as a whole, that give other bits when they run again."""
        function = self._rewritten()
        given = [t for t in tf.nest.flatten(self.data, expand_composites=True) if t is not None]
        with graph_optimizer.off():
            function(*self.data)
            self.write(before)
            return [
                name for plans in function.plans.values() for name in copies.unlike(plans.trace, plans.plan.step, given)
            ]

    def read(self) -> dict[str, Any]:
        return {name: v.numpy() for name, v in self.states.items()}

    def write(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.states[name].assign(value)

    def rounded(self, mode: str, befores: list[dict[str, Any]], phase: int) -> Steps:
        """The results where all that reaches the model is a few roundings off, each phase in another way."""
        moved = [
            {name: _rounded(value, phase, trained=name in self.watched) for name, value in before.items()}
            for before in befores
        ]
        x = tf.nest.map_structure(
            lambda t: tf.constant(_rounded(t.numpy(), phase)) if isinstance(t, tf.Tensor) else t, self.data[0]
        )
        return self.run(mode, len(befores), moved, (x, *self.data[1:]))[1]

    def _trained(self, values: dict[str, Any]) -> dict[str, Any]:
        """The states, each weight changed by up to a per cent; those of zeros, such as LoRA's, become up to 0.01."""
        values = dict(values)
        for name in self.watched:
            value = values[name]
            moved = 0.01 * _wave(value, 0)
            values[name] = (value * (1 + moved) if value.any() else abs(moved)).astype(value.dtype)
        return values


def _wave(value: np.ndarray, phase: int) -> np.ndarray:
    return np.cos(np.arange(value.size) + phase).reshape(value.shape)


def _rounded(value: Any, phase: int, trained: bool = False) -> Any:
    """A value a few roundings off; whole numbers that are not trained, such as ids, masks and counters, are exact."""
    value = np.asarray(value)
    if value.dtype.name not in _EPSILON:
        return value
    moved = (value * (1 + _ROUNDINGS * _EPSILON[value.dtype.name] * _wave(value, phase))).astype(value.dtype)
    return moved if trained else np.where(value == np.rint(value), value, moved)


@contextlib.contextmanager
def users_code(what: str, way_out: str) -> Iterator[None]:
    """Run code of the user's in here: an error becomes one of tfgc, with its reason in a line and the way out."""
    try:
        yield
    except (*OUT_OF_MEMORY, TfgcError):
        raise
    except Exception as error:
        raise UnsupportedModelError(f"{what}: {one_line(error)}. {way_out}") from error


def traced(model: keras.Model, function: Callable, *args: Any) -> tuple[bool, dict[str, Any]]:
    """Whether a function draws by `tf.random`, and by name the variables of the model, and others that it uses."""
    found: Any = tf.function(function, autograph=False).get_concrete_function(*args)
    known = [*_variables(model)]
    stored = {id(v.value) for v in known}
    others = [v for v in found.graph.variables if id(v) not in stored]
    return obstacles.draws(found.graph), named([*known, *plain_variables(model), *others])


def _variables(model: keras.Model) -> Iterator[keras.Variable]:
    """Every Keras variable that the layers hold, in a list of Keras's or not, and the global seed."""
    yield from model.variables
    seed = keras_state.global_seed()
    if seed is not None:
        yield seed.state
    for layer in keras_models.layers_inside(model):
        yield from (value for value in leaves(vars(layer)) if isinstance(value, keras.Variable))
        yield from layer.metrics_variables


def named(variables: Iterable[Any]) -> dict[str, Any]:
    """Variables by name, each once; a name that occurs again gets a number."""
    found = {}
    for variable in {id(v): v for v in variables}.values():
        found[text.unused(getattr(variable, "path", variable.name), found)] = variable
    return found


def _plain_value(value: Any) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return value.indices.numpy(), value.values.numpy()
    return None if value is None else np.asarray(value)
