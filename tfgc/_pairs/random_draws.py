"""Random numbers that TensorFlow draws from hidden state: the second run uses those of the first.

`tf.random.uniform` and similar functions advance a state that nobody can read; a second run would draw other numbers.
So what they drew is stored, and replaces the operation when the function runs again. For `tf.random.Generator` these
are three numbers: the counter that it skipped to.
"""

import math
from collections.abc import Iterable, Sequence

import tensorflow as tf

# Those through which no gradient flows: RandomGamma has one for its shape parameter.
TYPES = frozenset(
    ["RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal"]
    + ["RandomShuffle", "Multinomial", "RandomPoissonV2", "RngReadAndSkip"]
)
_SEEDED = tuple(f"Stateless{kind}" for kind in ("Random", "Truncated", "Parameterized", "Multinomial", "Shuffle"))
# A function that is kept stores more than this share of what it computes.
SHARE = 1 / 16


def draws(operations: Iterable[tf.Operation]) -> bool:
    """Whether an operation draws random numbers, from a seed that it is given or from hidden state."""
    return any(op.type in TYPES or is_seeded(op.type) for op in operations)


def is_seeded(op_type: str) -> bool:
    """Whether operations of a type draw random numbers from a seed, or prepare that."""
    return op_type.startswith(_SEEDED)


def too_large(operations: Sequence[tf.Operation], share: float = SHARE) -> tf.Operation | None:
    """The operation that draws most, if the draws are more than a share of all that is computed; else None."""
    draws = [op for op in operations if op.type in TYPES]
    if not draws:
        return None
    computed = sum(_bytes_of(op) for op in operations if op.type not in ("Placeholder", "Const"))
    return max(draws, key=_bytes_of) if not sum(map(_bytes_of, draws)) <= share * computed else None


def _bytes_of(op: tf.Operation) -> float:
    """Bytes of what an operation makes for one sample; of a random one without bounds where that is not known."""
    known = [t for t in op.outputs if t.shape.rank is not None]
    if len(known) < len(op.outputs) and op.type in TYPES:
        return math.inf
    return sum(t.dtype.size * math.prod(length or 1 for length in t.shape.as_list()) for t in known)
