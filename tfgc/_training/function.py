"""`tfgc.function`: a training step of any kind in less memory, in place of `tf.function`."""

import inspect
from collections.abc import Callable
from typing import Any

from tfgc import strategies
from tfgc._errors import OptionError, check_bool, check_int, did_you_mean
from tfgc._framework.model_checks import check_step
from tfgc._planning.budgets import Budget
from tfgc._planning.request import Request
from tfgc._progress import check_verbose
from tfgc._training.rewritten_function import RewrittenFunction, Settings
from tfgc._units import check_budget
from tfgc.strategies import Strategy

# Options of `tf.function` that are handed on: to the one that traces the user's code, and to the one that runs.
_OF_TRACE = ("experimental_autograph_options",)
_OF_RUN = ("experimental_attributes", "experimental_implements")


def function(
    fn: Callable[..., Any] | None = None,
    *,
    budget: Budget | None = None,
    strategy: Strategy | None = None,
    input_signature: Any = None,
    autograph: bool = True,
    reduce_retracing: bool = False,
    jit_compile: bool | None = None,
    compile_candidates: int = 3,
    verbose: int = 1,
    **options: Any,
) -> Any:
    """Run a training step in less memory: use it in place of `tf.function`.

    It takes any function that asks for gradients, whatever it is made of: Keras 3, tf_keras, `tf.Module`, bare
    variables, several models, several gradient calls, gradients of gradients. The step is traced once for each
    signature, as by `tf.function`, and its operations run in another order, those of the forward pass partly twice.
    Losses, gradients, updates, random numbers and states are those of `tf.function`. Models in it that are enabled
    (`tfgc.enable`) run their own code there: the step is planned as a whole.

    What a step needs is what it holds all the time, the variables that it uses and its arguments, plus the peak of what
    it makes. One line for each signature says so as simulated; `.status()` says what was measured once it was, from the
    second call on. A step without gradients, or where less than 5 % would be saved, runs as it is, as does any
    step in the scope of a `tf.distribute.Strategy`.

    Args:
        fn: The step. Without it, a decorator is returned: `@tfgc.function(budget="70%")`.
        budget: Bytes that the whole step may use on the device: `4_000_000_000`, `"4GB"`, a share of what the step
            needs as it is written (`"70%"`, `0.7`; as simulated), or `"auto"`, what is free. The plan of least work
            that fits is taken, and corrected by what real steps are measured to need, in up to three new plans; not
            inside of another `tf.function`, and not with `jit_compile`. Default: the least memory.
        strategy: The name of a strategy, or a function, as for `tfgc.plan`. Default: all plans of a Pareto front.
        input_signature: As of `tf.function`. Open sizes of the first dimension count as the batch of the first call.
        autograph: As of `tf.function`.
        reduce_retracing: As of `tf.function`.
        jit_compile: As of `tf.function`. What plans need is then what XLA says of them.
        compile_candidates: How many steps XLA compiles for that at most, the plain one among them, where no strategy is
            named. 1: none; what is simulated counts.
        verbose: 1: print a line on standard error for each signature. 0: print nothing.
        **options: Of the strategy, such as `segments=4`; or `experimental_attributes`, `experimental_autograph_options`
            and `experimental_implements` of `tf.function`.

    Returns:
        What is called, bound as a method and inspected (`get_concrete_function`, `python_function`) as a `tf.function`.
        `.status()` says what it needs, and of how much, for each signature; `print(step.status().explain())` also where
        its forward part is cut, and what is stored there.

    Raises:
        OptionError: If `fn` is no Python function, such as a model or a `tf.function`, or if an option is unknown.
        InfeasibleBudgetError: From a call, if three steps by the least plan were measured to need more than a budget in
            bytes, or if it is simulated to need 1.3 times as much; it says the least that would do, and what sets it.

    Example:
        >>> import tensorflow as tf, tfgc
        >>> weights = [tf.Variable(tf.ones((64, 64)) / 64) for _ in range(8)]
        >>> @tfgc.function(verbose=0)
        ... def step(x):
        ...     with tf.GradientTape() as tape:
        ...         for w in weights:
        ...             x = tf.nn.gelu(x @ w)
        ...         loss = tf.reduce_mean(x)
        ...     for w, gradient in zip(weights, tape.gradient(loss, weights)):
        ...         w.assign_sub(0.1 * gradient)
        ...     return loss
        >>> loss = step(tf.ones((512, 64)))
        >>> (now,) = step.status().traces
        >>> now.needed_bytes < 0.6 * now.plain_bytes
        True
    """
    check_verbose(verbose)
    for name, value in {"autograph": autograph, "reduce_retracing": reduce_retracing}.items():
        check_bool(name, value)
    if jit_compile is not None:
        check_bool("jit_compile", jit_compile)
    if budget is not None:
        check_budget(budget)
    candidates = check_int("compile_candidates", compile_candidates)
    handed = {name: options.pop(name) for name in (*_OF_TRACE, *_OF_RUN) if name in options}
    if strategy is not None:
        strategies.check_options(strategy, options, budget)
    elif options:
        name = next(iter(options))
        hint = did_you_mean(name, [*inspect.signature(function).parameters, *_OF_TRACE, *_OF_RUN])
        hint = ": a plan is of a model; give a strategy or a budget" if name == "plan" else hint
        hint = hint or ": an option of a strategy needs its name beside it, such as strategy='uniform'"
        raise OptionError(f"function takes no option {name!r}{hint}")
    if fn is not None:
        check_step(fn)
    traced = {"autograph": autograph, "jit_compile": jit_compile}  # loops are traced otherwise for XLA
    traced |= {k: v for k, v in handed.items() if k in _OF_TRACE}
    runs = {"input_signature": input_signature, "reduce_retracing": reduce_retracing, "jit_compile": jit_compile}
    request = Request(strategy, budget, options, candidates=candidates)
    settings = Settings(
        traced, {**runs, **{k: v for k, v in handed.items() if k in _OF_RUN}}, request,
        bool(verbose),
    )  # fmt: skip

    def decorated(fn: Callable[..., Any]) -> RewrittenFunction:
        check_step(fn)
        return RewrittenFunction(fn, settings)

    return decorated if fn is None else decorated(fn)
