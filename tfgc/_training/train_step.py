"""The custom training step: forward, loss, gradients, update, logs."""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from tfgc import strategies
from tfgc._core.plan import Plan
from tfgc._errors import OptionError, UnsupportedModelError, check_bool
from tfgc._framework import keras_names, model_checks
from tfgc._framework.trainer import Trainer
from tfgc._planning import ahead
from tfgc._planning.request import Request
from tfgc._tracing import functional_graphs
from tfgc._training import out_of_memory, stand_ins
from tfgc._training.atomic_step import AtomicStep
from tfgc._training.following_step import FollowingStep
from tfgc._training.planned_calls import PlannedCalls
from tfgc._training.rewritten_function import RewrittenFunction, Settings


class TrainingStep(Protocol):
    """What `train_step` returns."""

    optimizer: keras.Optimizer

    def __call__(self, x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, tf.Tensor]:
        """Train on one batch; return its loss, and the metrics so far."""
        ...

    def reset_metrics(self) -> None:
        """Reset the metrics."""
        ...


def train_step(
    model: keras.Model,
    loss: Any,
    optimizer: keras.Optimizer | str,
    *,
    plan: Plan | None = None,
    metrics: Sequence[Any] = (),
    run_eagerly: bool = False,
    jit_compile: bool = False,
    on_oom: str | None = None,
) -> TrainingStep:
    """Return a function that trains `model` on one batch, by a plan.

    The model is not changed: outside the step it runs its original code. The step adds `model.losses`, scales the loss
    when the optimizer is a `LossScaleOptimizer`, and runs on the device where TensorFlow places it. Inside the scope of
    a `tf.distribute.Strategy`, run the step with `strategy.run(step, args=(x, y))`; as in Keras, each replica returns
    its share of the loss, and the shares add up to the loss of the batch. Give
    no `metrics` there: TensorFlow cannot create their variables in a traced step of a replica. A step
    made there does not notice changes of the model; elsewhere it is traced again.

    Args:
        model: A built `keras.Sequential` or functional model.
        loss: What `model.compile` takes: a name, a function, a `keras.Loss`, or
            for several outputs a list or dict of them; None where layers add the losses, and the step is given no `y`.
        optimizer: A `keras.Optimizer` or its name.
        plan: A `tfgc.Plan`. Default: that of least memory for the step as a whole, as `tfgc.function` finds it; in
            Python and for replicas for the model's call and its gradients.
        metrics: What `model.compile` takes. They accumulate until `step.reset_metrics()`.
        run_eagerly: Run the step in Python, with every segment compiled, instead
            of the whole step as one `tf.function`.
        jit_compile: Compile the step with XLA.
        on_oom: What to do when a step runs out of memory. None or "raise": raise. "replan": put back the state from
            before the step, plan for less, run the step again by that plan, and warn. The update of the weights then
            waits for all gradients, which may hold more of them at once.

    Returns:
        `step(x, y=None, sample_weight=None) -> dict`, with the loss of this batch and
        the metrics so far, as scalar tensors. `step.optimizer` is the optimizer.

    Raises:
        UnsupportedModelError: If the model is neither Sequential nor functional, or has no trainable weights. From the
            step: in a TensorFlow 1 graph; with `on_oom="replan"`, if the step writes what cannot be put back.
        OptionError: For an optimizer, a loss or a metric that Keras does not know, and for options that do not exist or
            exclude each other. From the step: without `y` where there is a `loss`.
        PlanMismatchError: If the plan was made for another model; in a step, if the
            model's layers have changed since.
        tf.errors.ResourceExhaustedError: From the step, if it runs out of memory; with `on_oom="replan"` only if no
            plan needs less, or if it failed while weights were updated, which cannot be undone. The message says what
            the plan predicts, what the device had, and the budget to try.

    Warns:
        OutOfMemoryWarning: From the step, with `on_oom="replan"`, if it is run again.

    Example:
        >>> import keras, numpy as np, tfgc
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        >>> step = tfgc.train_step(model, "mse", "sgd", metrics=["mae"])
        >>> sorted(step(np.ones((2, 8)), np.ones((2, 1))))
        ['loss', 'mae']
    """
    model_checks.check_model(model)
    if ahead.applies_to(model):
        raise UnsupportedModelError(
            f"train_step runs Sequential and functional models, and {model.name!r} is a subclassed one "
            f"({type(model).__name__}). Train it in fit or in your own loop: tfgc.enable(model) plans its first step"
        )
    if optimizer is None:
        raise OptionError("a training step needs an optimizer, such as 'adam'")
    if run_eagerly and jit_compile:
        raise OptionError("run_eagerly=True and jit_compile=True cannot be combined: XLA compiles a traced step")
    check_bool("run_eagerly", run_eagerly)
    check_bool("jit_compile", jit_compile)
    used: Any = keras_names.optimizer(optimizer)
    keras_names.check_losses(loss, model)
    keras_names.check_metrics(metrics or (), model)
    out_of_memory.check_on_oom(on_oom)
    replicas = tf.distribute.has_strategy()
    if on_oom == "replan" and replicas:
        raise OptionError("on_oom='replan': a step of several replicas cannot be taken back; leave it out")
    strategies.check_plan(plan)
    mode = "compiled" if run_eagerly else "xla" if jit_compile else "graph"
    functional_graphs.functional_of(model)
    if plan is not None and not plan.operations:
        raise stand_ins.of_other_graph(model, plan)
    if not model.trainable_weights:
        raise UnsupportedModelError(f"{model.name!r} has no trainable weights, so a step has nothing to update")
    is_whole = not run_eagerly and not replicas
    with functional_graphs.original_methods(model):
        request = Request() if plan is None else Request.of(plan)
        calls = PlannedCalls(model, request, verbose=None)  # where the step is not traced as a whole
    trainer = Trainer(model, calls.call)
    trainer.compile(used, loss, metrics=metrics or None, run_eagerly=run_eagerly, auto_scale_loss=False)
    used.build(model.trainable_variables)

    def step(x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, tf.Tensor]:
        with tf.init_scope():  # where the step is called, whatever traces it
            model_checks.refuse_tf1_graph(f"the training step of {model.name!r}")
        if y is None and loss is not None:
            raise OptionError(
                f"the training step of {model.name!r} was called without targets, which loss={loss!r} compares outputs "
                "with: call step(x, y). Where layers add the losses (add_loss), give loss=None"
            )
        return trainer.step(x, y, sample_weight)

    atomic = AtomicStep(trainer, [used], mode) if on_oom == "replan" else None
    whole = step if atomic is None else atomic.around(step)
    options: dict[str, Any] = {"reduce_retracing": True, "jit_compile": jit_compile}
    make = (lambda: whole) if run_eagerly else functools.partial(tf.function, whole, autograph=False, **options)
    if is_whole:
        traced = {"autograph": False, "jit_compile": jit_compile}
        settings = Settings(traced, options, request, verbose=False)
        make = functools.partial(RewrittenFunction, whole, settings)
    if run_eagerly or not tf.distribute.has_strategy():
        following = FollowingStep(make, trainer, calls, mode, atomic)
        made: Any = tf.autograph.experimental.do_not_convert(following.run)
    else:
        made = make()  # `Strategy.run` takes a tf.function apart, and cannot run a function around one.
    made.optimizer = used
    made.reset_metrics = trainer.reset_metrics
    return made
