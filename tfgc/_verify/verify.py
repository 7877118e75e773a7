"""Prove on the user's model that a plan changes nothing but memory and time.

Plain and planned steps run from the same states: before each planned step every variable
gets the value that it had before the plain one, so that differences do not grow from step
to step. Between the steps the weights move by a per cent.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfgc._calls import names
from tfgc._core.modes import MODES
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, UnsupportedModelError, check_int, did_you_mean
from tfgc._framework import keras_models, tensor_attributes
from tfgc._planning import by_calls, first_batch, planner
from tfgc._planning.first_batch import Request
from tfgc._pure import side_effects, tensor_packing
from tfgc._tracing import keras_graph
from tfgc._training import enable, layer_calls, train_step
from tfgc._training.layer_selectors import Selector
from tfgc._verify import determinism
from tfgc._verify.verdicts import EPSILON, StepComparison, Steps, Verdict

_SQUARES = "the mean square of the outputs and of the logits behind them"
_BASELINE = {"eager": "eager", "compiled": "graph", "graph": "graph", "xla": "xla"}
# What an operation may be off by, as in the rule for eager steps.
_ROUNDINGS = 4
_OTHER = {"compiled": "eager", "graph": "eager", "xla": "graph"}


def verify(
    model: keras.Model,
    plan: Plan | None,
    batch: Any,
    *,
    layers: Selector | Iterable[Selector] | None = None,
    loss: Any = None,
    modes: str | Sequence[str] | None = None,
    steps: int = 3,
) -> Verdict:
    """Compare training by a plan with plain training, on your model and your data.

    Runs plain and planned steps from the same state and compares the loss, each gradient
    (None and sparse gradients included), each state variable, random seeds, metrics and `add_loss`
    terms. Also runs every layer twice from the same state, to find those that are not
    deterministic. Afterwards the model and its variables are as they were before. Plain steps
    must fit in memory: use a smaller batch where they do not.

    Args:
        model: Any `keras.Model` that is built.
        plan: A `tfgc.Plan`; None for the least peak on this batch, or with `layers`.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`, as `model.train_on_batch` takes them.
        layers: Layers to recompute in place of a plan, as in `tfgc.enable`.
        loss: What `model.compile` takes. Default: what the model was compiled with; without
            that, or without `y`, the mean square of the outputs, and of the logits that
            Keras's crossentropies find behind them.
        modes: Of "eager" (op by op), "compiled" (eager calls of compiled segments, as in custom
            loops and `fit(run_eagerly=True)`), "graph" (the step in `tf.function`, as in `fit`) and
            "xla" (as `fit` on GPUs). Default: the first three, and "xla" if the model was compiled
            to use it.
        steps: How many steps in a row; one alone would not show a random number that never changes.

    Returns:
        A `Verdict`: true if all is equal; printed, it shows the worst relative difference and
        its layer. A difference may be, relative to a gradient's norm, 1e-5 in float32, 5e-3 in float16, 5e-2 in
        bfloat16 and 1e-12 in float64, op by op a few roundings. Where plain TensorFlow differs by more
        between its modes, or when each weight is four roundings off, twice that is
        allowed and listed as tolerated.

    Raises:
        OptionError: For an unknown mode.

    Example:
        >>> import keras, numpy as np, tfgc
        >>> layers = [keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> verdict = tfgc.verify(model, tfgc.plan(model), (np.ones((4, 8)), np.ones((4, 1))), loss="mse")
        >>> bool(verdict)
        True
    """
    if modes is None:
        jitted = getattr(model, "compiled", False) and model.jit_compile
        modes = MODES if jitted else MODES[:3]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    for mode in modes or [None]:
        if mode not in MODES:
            raise OptionError(f"modes={modes!r}: give some of {', '.join(MODES)}{did_you_mean(mode, MODES)}")
    check_int("steps", steps)
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(f"{model!r} is not a keras.Model")
    if layers is not None and plan is not None:
        raise OptionError("give a plan or layers=, not both")
    data = tf.nest.map_structure(_tensor, keras.utils.unpack_x_y_sample_weight(batch))
    with contextlib.ExitStack() as stack:
        stack.enter_context(layer_calls.restored_afterwards(model))
        step = _Step(model, data, loss)
        stack.callback(step.write, step.read())
        chosen = None if layers is None else layer_calls.choose(model, layers)
        if plan is None and layers is None:
            plan = _least(model, data)
        changed = chosen if plan is None or not plan.calls else _changed_by(model, plan)
        comparison = StepComparison(*_tolerances(model, changed))
        for mode in modes:
            befores, baseline = step.run(_BASELINE[mode], steps)
            enable.switch(model, plan, layers=chosen, compile_segments=mode != "eager")
            _, planned = step.run(mode, steps, befores)
            layer_calls.restore_calls(model)
            comparison.compare(mode, baseline, planned, functools.partial(_others, step, mode, befores))
        with determinism.check_determinism(_parts(model, changed)) as (unrepeatable, kept):
            model(data[0], training=True)
    return comparison.verdict(modes, steps, step.loss, tuple(sorted(unrepeatable)), kept)


def _least(model: keras.Model, data: tuple[Any, Any, Any]) -> Plan:
    """The plan of least peak for this batch."""
    if by_calls.applies_to(model):
        return planner.plan(model, example=tuple(part for part in data if part is not None))
    return first_batch.plan_step(model, data[0], "graph", Request("optimal", None, {})).plan


def _others(step: "_Step", mode: str, befores: list[dict[str, Any]]) -> Iterator[Steps]:
    """Plain steps that differ by rounding alone: in another mode, and from weights that are a few roundings off."""
    if mode in _OTHER:
        yield step.run(_OTHER[mode], len(befores), befores)[1]
        yield step.run(_BASELINE[mode], len(befores), [step.perturbed(before) for before in befores])[1]


class _Step:
    """One training step of a model, enabled or not, and every variable that the step may change."""

    def __init__(self, model: keras.Model, data: tuple[Any, Any, Any], loss: Any) -> None:
        self._model, self._data = model, data
        self._grader = _grader(model, loss, data[1] is not None)
        self.loss = _SQUARES if self._grader is None else f"{loss!r}" if loss is not None else "the compiled loss"
        packing = tensor_packing.Packing(((data[0],), {"training": True}))
        packing.take_tensors()
        effects = side_effects.discover(model, packing)
        self._states = _named([*model.variables, *effects.reads, *effects.writes, *effects.variables])
        if self._grader is not None:
            # Metrics are built by their first use.
            before, metrics = self.read(), _named(self._grader.metrics_variables)
            values = {name: v.numpy() for name, v in metrics.items()}
            self._graded(*data, model(data[0], training=True))
            self._grader.reset_metrics()
            self.write(before)
            for name, value in values.items():
                metrics[name].assign(value)
            self._states = _named([*self._states.values(), *self._grader.metrics_variables])
        self._watched = {
            name: v if isinstance(v, tf.Variable) else v.value for name, v in self._states.items() if v.trainable
        }

    def run(
        self, mode: str, steps: int, befores: list[dict[str, Any]] | None = None
    ) -> tuple[list[dict[str, Any]], Steps]:
        """Run some steps from the states in `befores`, or one after the other; return the states and all results."""
        function: Callable = self._once
        if mode in ("graph", "xla"):
            function = tf.function(functools.partial(function), autograph=False, jit_compile=mode == "xla")
        given, outcomes = befores or [self.read()], []
        for number in range(steps):
            if number == len(given):
                given.append(self.perturbed(self.read(), 0.01))
            self.write(given[number])
            loss, added, gradients, metrics = function(*self._data)
            found = {("loss", "loss"): loss}
            found |= {("added loss", str(i)): value for i, value in enumerate(added)}
            found |= {("metric", name): value for name, value in metrics.items()}
            found |= {("gradient", name): gradient for name, gradient in zip(self._watched, gradients)}
            found |= {
                (_kind(v), name): v.value if isinstance(v, keras.Variable) else v for name, v in self._states.items()
            }
            outcomes.append({key: _plain_value(value) for key, value in found.items()})
        if befores is not None:
            self.write(befores[0])
        return given, outcomes

    def _once(self, x: Any, y: Any, weight: Any) -> tuple[tf.Tensor, list, list, dict[str, Any]]:
        with tf.GradientTape() as tape:
            outputs = self._model(x, training=True)
            added = list(self._model.losses)
            loss, metrics = self._graded(x, y, weight, outputs)
        return loss, added, tape.gradient(loss, list(self._watched.values())), metrics

    def _graded(self, x: Any, y: Any, weight: Any, outputs: Any) -> tuple[tf.Tensor, dict[str, Any]]:
        """The loss and the metrics of a batch."""
        if self._grader is not None:
            loss = self._grader.compute_loss(x, y, outputs, weight)
            return loss, self._grader.compute_metrics(x, y, outputs, weight)
        flat = tf.nest.flatten(outputs)
        attached = [pair for tensor in flat for pair in tensor_attributes.attributes(tensor)]
        behind = [value for name, value in attached if name == tensor_attributes.LOGITS]
        flat = [tf.cast(t, tf.float32) for t in [*flat, *behind]]
        return tf.add_n([tf.reduce_mean(t**2) for t in flat] + [tf.cast(t, tf.float32) for t in self._model.losses]), {}

    def read(self) -> dict[str, Any]:
        """The value of every variable."""
        return {name: v.numpy() for name, v in self._states.items()}

    def write(self, values: dict[str, Any]) -> None:
        """Give variables their values."""
        for name, value in values.items():
            self._states[name].assign(value)

    def perturbed(self, values: dict[str, Any], share: float | None = None) -> dict[str, Any]:
        """The states, with every weight changed by up to this share of it, as by an update; by a few eps if None."""
        values = dict(values)
        for name in self._watched:
            value = values[name]
            wave = np.cos(np.arange(value.size)).reshape(value.shape)
            moved = wave * (_ROUNDINGS * EPSILON.get(value.dtype.name, EPSILON["float32"]) if share is None else share)
            values[name] = (value * (1 + moved)).astype(value.dtype)
        return values


def _grader(model: keras.Model, loss: Any, has_targets: bool) -> Any:
    """The model that computes the loss and metrics, as Keras does; None for the mean squares."""
    if loss is not None and not has_targets:
        raise OptionError(f"loss={loss!r} needs targets: give the batch as (x, y)")
    if loss is not None:
        trainer = train_step.Trainer(model, model)
        trainer.compile(loss=loss)
        return trainer
    return model if has_targets and model.compiled else None


def _changed_by(model: keras.Model, plan: Plan) -> list[keras.Layer]:
    """The layers that run otherwise by a plan of calls."""
    whole, parts = names.layers_of(model, plan)
    return [*whole, *(part for part, _ in parts)]


def _parts(model: keras.Model, chosen: list[keras.Layer] | None) -> dict[str, keras.Layer]:
    """The layers to run twice, by name: the chosen ones, or those that the model calls directly."""
    if chosen is not None:
        return {layer.path or layer.name: layer for layer in chosen}
    called = {step.node.operation: None for step in keras_graph.Program(model).steps}
    found = {}
    for layer in called:
        if isinstance(layer, keras.Layer):
            found[layer.name if layer.name not in found else layer.path] = layer
    return found


def _tolerances(model: keras.Model, chosen: list[keras.Layer] | None) -> tuple[str, int]:
    """The coarsest dtype that layers compute in, and the most uses of one tensor or weight, for `StepComparison`."""
    dtypes = {layer.compute_dtype for layer in keras_models.layers_inside(model)}
    coarsest = next((d for d in ("bfloat16", "float16", "float32", "float64") if d in dtypes), "float32")
    if chosen is not None:
        return coarsest, 16
    program = keras_graph.Program(model)
    uses = collections.Counter(ref for node in program.graph.nodes for ref in node.inputs)
    calls = collections.Counter(id(step.node.operation) for step in program.steps)
    # Regularizers are one use more of an output or a weight.
    return coarsest, 1 + max([2, *uses.values(), *calls.values()])


def _named(variables: Iterable[Any]) -> dict[str, Any]:
    """Variables by name, each once; a name that occurs again gets a number."""
    found = {}
    for variable in {id(v): v for v in variables}.values():
        name, count = getattr(variable, "path", variable.name), 0
        unique = name
        while unique in found:
            count += 1
            unique = f"{name}:{count}"
        found[unique] = variable
    return found


def _kind(variable: Any) -> str:
    return "seed" if "seed_generator_state" in variable.name else "state"


def _tensor(value: Any) -> Any:
    """A tensor, as Keras's data adapters make them."""
    if value is None or tf.is_tensor(value):
        return value
    value = np.asarray(value)
    return tf.convert_to_tensor(value, keras.config.floatx() if value.dtype.kind == "f" else None)


def _plain_value(value: Any) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return value.indices.numpy(), value.values.numpy()
    return None if value is None else np.asarray(value)
