"""The ways in which a training step can run: the one list of names for parameters, options and files."""

from typing import Literal, get_args

from tfgc._errors import OptionError, did_you_mean

# eager: op by op. compiled: a loop in Python that calls each segment as a compiled function. graph: the whole step in a
# `tf.function`, as in `fit`. xla: the whole step compiled by XLA, as in `fit` on GPUs.
Mode = Literal["eager", "compiled", "graph", "xla"]
MODES: tuple[Mode, ...] = get_args(Mode)
# Where a step is simulated as it is traced.
PREDICTABLE: tuple[Mode, ...] = ("graph", "xla")
# The mode of plain training in the same loop: `compiled` compiles segments alone, and plain training has none.
PLAIN: dict[str, Mode] = {"eager": "eager", "compiled": "eager", "graph": "graph", "xla": "xla"}


def check_mode(mode: str, allowed: tuple[str, ...] = MODES, why: str = "") -> None:
    """Raise `OptionError` unless `mode` is one of `allowed`; `why` says what the others lack.

    >>> check_mode("grap")
    Traceback (most recent call last):
    tfgc._errors.OptionError: mode='grap': must be one of eager, compiled, graph, xla; did you mean 'graph'?
    """
    if mode not in allowed:
        reason = f": {why}" if why and mode in MODES else did_you_mean(mode, allowed)
        raise OptionError(f"mode={mode!r}: must be one of {', '.join(allowed)}{reason}")


def check_predictable(mode: str) -> None:
    """Raise `OptionError` unless steps are simulated in a mode."""
    check_mode(mode, PREDICTABLE, "what a loop in Python keeps cannot be predicted")
