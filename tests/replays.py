"""Which segments run again."""

import functools

from tfgc._pairs.backward import Backward
from tfgc._run.emit import Built


def note_replays(note, replace=setattr):
    """Call `note` with each segment that runs again, or is traced to do so, from now on."""

    def noting(backward):
        @functools.wraps(backward)
        def noted(piece, *arguments):
            segments = piece._held().segments
            if segments is None or any(op.segment for op in segments._step.ops.values()):
                note(piece)
            return backward(piece, *arguments)

        return noted

    def building(init):
        @functools.wraps(init)
        def noted(built, trace, step, *arguments):
            if any(op.segment for op in step.ops.values()):
                note(built)
            init(built, trace, step, *arguments)

        return noted

    replace(Backward, "__call__", noting(Backward.__call__))
    replace(Built, "__init__", building(Built.__init__))
