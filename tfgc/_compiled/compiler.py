"""XLA's GPU compiler in a child process."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from tfgc import _child_process
from tfgc._compiled import worker
from tfgc._compiled.targets import Target
from tfgc._errors import TfgcError, UnsupportedModelError
from tfgc._records.job import OUT_OF_MEMORY

_NEEDED = ("jax", "jax_cuda12_plugin")
# Finds no GPU, and times no kernels on one.
_FLAGS = "--xla_gpu_autotune_level=0 --xla_dump_hlo_as_text"
# Without timing, XLA takes its first choice of kernel for a product, and fails where that cannot be tiled so.
_UNTILED, _OTHER_PRODUCTS = "find output tile sizes", "--xla_gpu_enable_triton_gemm=false"


def check_installed() -> None:
    """Raise `TfgcError` if the compiler is not there."""
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            raise TfgcError(f'compiling for a GPU needs {name}: pip install "tfgc[compile]" (about 5.5 GB, no GPU)')


def run(step: bytes, target: Target, timeout: float, dump: pathlib.Path) -> dict[str, Any]:
    """Compile a step in StableHLO within so many seconds; return what `worker.compile_step` found.

    XLA's own texts go to the folder `dump`: modules before and after optimization, and its assignment of buffers.
    """
    begin = time.monotonic()
    try:
        ended, found = _attempt(step, target, timeout, dump, _FLAGS)
        if found is None and _UNTILED in ended.stderr:
            left = max(0, timeout - (time.monotonic() - begin))
            ended, found = _attempt(step, target, left, dump, f"{_FLAGS} {_OTHER_PRODUCTS}")
    except subprocess.TimeoutExpired as error:
        raise TfgcError(
            f"the compiler took more than {timeout:g} seconds: give it more by timeout=, or compile a smaller model"
        ) from error
    if found is None:
        raise _failure(ended.returncode, ended.stderr)
    return found


def _attempt(
    step: bytes, target: Target, timeout: float, dump: pathlib.Path, flags: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any] | None]:
    """Compile with these flags: how the process ended, and what it found; raise `TimeoutExpired`."""
    # XLA splits its flags at blanks, except within quotes.
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags} --xla_dump_to={json.dumps(str(dump), ensure_ascii=False)}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    with tempfile.TemporaryDirectory(prefix="tfgc-") as folder:
        paths = [pathlib.Path(folder, name) for name in ("step", "target", "reply")]
        paths[0].write_bytes(step)
        paths[1].write_text(target.description())
        script = [_child_process.__file__, str(os.getpid()), worker.__file__]
        command = [sys.executable, "-P", *script, *map(str, paths)]
        ended = subprocess.run(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace", timeout=timeout, check=False,
        )  # fmt: skip
        return ended, json.loads(paths[2].read_text()) if paths[2].exists() else None


def _failure(code: int, stderr: str) -> TfgcError:
    """Why the compiler found nothing."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "Error" in line or "error:" in line), (lines or [""])[-1])
    if code == -signal.SIGKILL or any(word in stderr for word in OUT_OF_MEMORY):
        return TfgcError("the compiler ran out of this machine's memory: compile a smaller model or batch")
    if code < 0:
        why = f": {last}" if last else ""
        return TfgcError(f"the compiler {_child_process.died(-code)}{why}. Compile a smaller model or batch")
    if "ImportError" in last or "AttributeError" in last:
        return TfgcError(f"this version of jax cannot compile for a described GPU: {last}")
    return UnsupportedModelError(f"XLA's GPU compiler refuses the step: {last}")
