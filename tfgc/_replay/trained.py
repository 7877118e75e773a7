"""Which variables trained so far, since their gradients may be asked for although they are frozen in a call."""

from collections.abc import Iterable, Sequence

import keras

from tfgc._framework import private_api


class Trained:
    """The variables that trained in some call, by whatever plan it ran."""

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def note(self, variables: Iterable[keras.Variable]) -> None:
        """Add those of the variables that train now."""
        self._ids.update(id(variable) for variable in variables if variable.trainable)

    def asked_for(self, variables: Sequence[keras.Variable]) -> tuple[list[bool], dict[int, keras.Variable]]:
        """Of each variable whether a gradient may be asked for (it trains, or a tape watches it); others that trained.

        Those, by position, did in an earlier call: a GAN's discriminator is frozen for the generator's step, and may be
        thawed between its own call and the gradient. Variables that are asked for are added.
        """
        watched = iter(private_api.watched([variable for variable in variables if not variable.trainable]))
        asked = [bool(variable.trainable) or next(watched) for variable in variables]
        self._ids.update(id(variable) for variable, is_asked_for in zip(variables, asked) if is_asked_for)
        return asked, {i: v for i, v in enumerate(variables) if not asked[i] and id(v) in self._ids}
