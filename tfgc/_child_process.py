"""What every child process of tfgc does first, and what the signal that ended one means.

A child that imports nothing of tfgc is started by this file: `python -P _child_process.py PARENT SCRIPT ARGUMENT...`,
so only the standard library is imported here.
"""

import contextlib
import ctypes
import os
import runpy
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux; elsewhere there is no prctl
_MEANINGS: dict[int, str] = {
    signal.SIGKILL: "killed, as the system does where memory runs out",
    signal.SIGTERM: "ended by another process",
    signal.SIGABRT: "native code gave up",
    signal.SIGSEGV: "native code crashed",
    signal.SIGBUS: "native code crashed",
    signal.SIGFPE: "native code divided by zero",
    signal.SIGILL: "native code that this processor cannot run",
    signal.SIGXCPU: "over its limit of processor time",
}


def begin(parent: int) -> None:
    """Let this process end when its parent does, and before others if the machine runs out of memory."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before the signal was set.
        sys.exit("the process that started this one has ended")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def died(number: int) -> str:
    """What a signal that ended a process is called, and what it means.

    >>> died(11), died(40)
    ('died of SIGSEGV (native code crashed)', 'died of signal 40')
    """
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"died of {name}" + (f" ({_MEANINGS[number]})" if number in _MEANINGS else "")


if __name__ == "__main__":
    begin(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
