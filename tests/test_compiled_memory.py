"""What XLA's GPU compiler would allocate: the exported step, what is read from the compiler's texts, and its failures.

Tests that compile are marked `compile`; `scripts/compile_tests.sh` runs them. The others need no jax.
"""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import time
import types

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf
from click.testing import CliRunner
from models import Halved

import tfgc
from tfgc._cli.group import cli
from tfgc._compiled import compiler, step, targets
from tfgc._compiled import memory as compiled

L = keras.layers


def convolutions(count=3):
    made = [L.Conv2D(8, 3, padding="same", activation="relu", name=f"conv{i}") for i in range(count)]
    return keras.Sequential([keras.Input((16, 16, 3)), *made, L.Flatten(), L.Dense(4, name="head")])


def exported(model, plan=None, optimizer="sgd", **options):
    batch = step.batch(
        model, options.pop("batch_size", 4), None, options.pop("example", None), options.pop("loss", None)
    )
    return step.stable_hlo(model, plan, batch, optimizer)


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(compiler, "check_installed", lambda: None)


@pytest.fixture
def child(monkeypatch, tmp_path, installed):
    """Let another program be the compiler: Python code that gets the paths of step, target and reply."""

    def become(code):
        path = tmp_path / "child.py"
        path.write_text(f"import os, sys, time\nstep, target, reply = sys.argv[1:]\n{code}\n")
        monkeypatch.setattr(compiler.worker, "__file__", str(path))

    return become


def test_the_step_by_a_plan_holds_a_replay_and_the_model_is_as_before():
    model = convolutions(8)
    tfgc.enable(model, tfgc.plan(model, 4, strategy="uniform", segments=2))
    enabled, weights = model.call, model.get_weights()
    plan = tfgc.plan(model, 4, strategy="uniform", segments=3)
    assert any(segment.mode == "recompute" for segment in plan.segments)
    plain, planned = exported(model), exported(model, plan)
    assert b"conv1" in plain
    assert len(planned) > len(plain)
    assert model.call == enabled
    assert not model.compiled
    assert all(map(np.array_equal, weights, model.get_weights()))


def test_an_example_brings_the_compiled_loss_and_the_batch_size():
    model = convolutions()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    example = np.ones((2, 16, 16, 3)), np.ones(2, "int32")
    batch = step.batch(model, None, None, example, None)
    assert (batch.x.shape, batch.x.dtype, batch.y.shape, batch.y.dtype) == ((2, 16, 16, 3), tf.float32, (2,), tf.int32)
    assert b"sparse_categorical_crossentropy" in exported(model, example=example, optimizer=None)
    assert step.batch(model, 8, None, example, "mse").x.shape == (8, 16, 16, 3)


def test_a_subclassed_model_needs_an_example():
    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = convolutions(6)

        def call(self, x):
            return 2 * self.inner(x)

    model, example = Twice(), (np.ones((32, 16, 16, 3), "float32"), np.ones((32, 4), "float32"))
    with pytest.raises(tfgc.UnsupportedModelError, match="not built yet"):
        exported(model, example=example)
    model(example[0])
    with pytest.raises(tfgc.OptionError, match="example="):
        exported(model)
    planned = exported(model, tfgc.plan(model, example=example), example=example, batch_size=None)
    assert len(planned) > len(exported(model, None, example=example, batch_size=None))


def test_sizes_losses_and_batches_that_are_not_known_are_errors():
    open_sizes = keras.Sequential([keras.Input((None, 8)), L.Dense(4)])
    with pytest.raises(tfgc.OptionError, match="input_shapes="):
        exported(open_sizes)
    with pytest.raises(tfgc.OptionError, match="needs targets"):
        exported(convolutions(), loss="mse")
    with pytest.raises(tfgc.OptionError, match="needs targets"):
        exported(convolutions(), example=np.ones((4, 16, 16, 3)))
    with pytest.raises(tfgc.OptionError, match="batch_size"):
        exported(convolutions(), batch_size=None)
    with pytest.raises(tfgc.UnsupportedModelError, match="no trainable weights"):
        exported(keras.Sequential([keras.Input((4,)), L.ReLU()]))
    with pytest.raises(tfgc.UnsupportedModelError, match=r"optimizer Halved cannot be made again .* get_config\(\)"):
        exported(convolutions(), optimizer=Halved(1.0))


def test_what_xla_cannot_compile_is_named():
    class Printing(L.Layer):
        def call(self, x):
            return x + tf.ensure_shape(tf.numpy_function(lambda y: y, [x], x.dtype), x.shape)

    model = keras.Sequential([keras.Input((4,)), L.Dense(4), Printing()])
    with pytest.raises(tfgc.UnsupportedModelError, match="PyFunc"):
        exported(model)


def test_targets_are_data_and_a_wrong_name_gets_near_ones():
    assert "core_count: 40" in targets.find("t4").description()
    with pytest.raises(tfgc.OptionError, match="did you mean 'h100'"):
        tfgc.compiled_memory(convolutions(), 4, target="h10")


def test_the_missing_extra_is_named(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("jax") else found(name))
    with pytest.raises(tfgc.TfgcError, match=r'pip install "tfgc\[compile\]"'):
        tfgc.compiled_memory(convolutions(), 4)


FAILURES = {
    "time.sleep(60)": (tfgc.TfgcError, "more than 0.5 seconds"),
    "os.kill(os.getpid(), 9)": (tfgc.TfgcError, "ran out of this machine's memory"),
    "os.kill(os.getpid(), 11)": (tfgc.TfgcError, r"died of SIGSEGV \(native code crashed\)"),
    "raise AttributeError('jax has no DeviceList')": (tfgc.TfgcError, "this version of jax"),
    "sys.exit('XlaRuntimeError: INTERNAL: no ptxas')": (tfgc.UnsupportedModelError, "no ptxas"),
}


@pytest.mark.parametrize("code", FAILURES)
def test_how_a_compiler_fails_is_told_apart(code, child, tmp_path):
    child(code)
    kind, words = FAILURES[code]
    with pytest.raises(kind, match=words):
        compiler.run(b"", targets.find("h100"), 0.5 if "sleep" in code else 30, tmp_path)


def test_the_child_gets_step_target_and_flags(child, tmp_path):
    child(
        "import json, pathlib\nassert pathlib.Path(step).read_bytes() == b'module'\n"
        "assert 'H100' in pathlib.Path(target).read_text() and os.environ['JAX_PLATFORMS'] == 'cpu'\n"
        "pathlib.Path(reply).write_text(json.dumps(os.environ['XLA_FLAGS']))"
    )
    flags = compiler.run(b"module", targets.find("h100"), 30, tmp_path)
    assert f'--xla_dump_to="{tmp_path}"' in flags
    assert "--xla_gpu_autotune_level=0" in flags


KILLED = """
import pathlib, sys
from tfgc._compiled import compiler, targets
compiler.check_installed = lambda: None
compiler.worker.__file__ = sys.argv[1]
compiler.run(b"", targets.find("h100"), 60, pathlib.Path(sys.argv[2]))
"""


def test_a_compiler_ends_with_the_process_that_waits_for_it(tmp_path):
    child, started = tmp_path / "child.py", tmp_path / "started"
    child.write_text(f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text('')\ntime.sleep(60)")
    parent = subprocess.Popen([sys.executable, "-c", KILLED, str(child), str(tmp_path)])
    try:
        while not started.exists():
            assert parent.poll() is None
            time.sleep(0.01)
        (compiler,) = psutil.Process(parent.pid).children()
        parent.kill()
        compiler.wait(timeout=10)
    finally:
        parent.kill()
        parent.wait()


LIVE = """  BufferLiveRange:
    conv.1{}:0-9
  Live ranges at 116 (peak):
    conv.1{0}: 524288 bytes (cumulative: 524288 bytes)
    fusion.2{}: 1048576 bytes (cumulative: 1572864 bytes)
    XLA_Args.3{}: 9999999 bytes (cumulative: 11572863 bytes)
    odd.4{}: 12 bytes (cumulative: 11572875 bytes)
"""
MODULE = """HloModule step, is_scheduled=true
  %conv.1 = (f32[8]{0}, u8[0]{0}) custom-call(%a), metadata={op_name="net_1/first_run/conv0_1/convolution"}
  ROOT %fusion.2 = f32[8]{0} fusion(%conv.1), metadata={op_name="replay/gradient_tape/pool_1/MaxPool2d/MaxPoolGrad"}
"""


def dumped(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "module_1.sm_9.0_gpu_after_optimizations-live-range.txt").write_text(LIVE)
    (folder / "module_1.sm_9.0_gpu_after_optimizations.txt").write_text(MODULE)


def test_the_largest_buffers_are_named_by_layer(tmp_path):
    dumped(tmp_path)
    model = keras.Sequential([keras.Input((4, 4, 1)), L.Conv2D(1, 1, name="conv0"), L.MaxPooling2D(name="pool")])
    assert compiled._largest_buffers(tmp_path, model) == (
        tfgc.CompiledBuffer(1048576, "pool", "replay/gradient_tape/pool_1/MaxPool2d/MaxPoolGrad"),
        tfgc.CompiledBuffer(524288, "conv0", "net_1/first_run/conv0_1/convolution"),
        tfgc.CompiledBuffer(12, "", "odd.4"),
    )


def test_texts_of_an_earlier_step_are_not_read(monkeypatch, installed, tmp_path):
    """XLA names its texts after the step, so those of another one stay beside them; also in folders with a blank."""

    def compile_small(step, target, timeout, dump):
        dumped(dump)
        return FOUND

    texts = tmp_path / "XLA's texts"
    dumped(texts)
    earlier = texts / "module_0.sm_9.0_gpu_after_optimizations-live-range.txt"
    earlier.write_text("(peak):\n" + "    earlier.1{}: 99999999 bytes\n" * 20)
    monkeypatch.setattr(compiler, "run", compile_small)
    found = tfgc.compiled_memory(convolutions(), 4, dump=str(texts))
    assert [buffer.operation for buffer in found.largest][-1] == "odd.4"
    assert earlier.exists()
    assert len(list(texts.iterdir())) == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(tfgc.TfgcError, match=r"cannot write '.*file'"):
        tfgc.compiled_memory(convolutions(), 4, dump=str(tmp_path / "file"))


FOUND = {
    "seconds": 2.0, "temp_bytes": 3_000_000, "argument_bytes": 1_000_000, "output_bytes": 500_000,
    "alias_bytes": 400_000, "compiler": "a compiler",
}  # fmt: skip


@pytest.mark.gate
def test_the_shell_shows_the_plain_step_and_the_planned_one(monkeypatch, installed, tmp_path):
    figures = iter([FOUND, {**FOUND, "temp_bytes": 1_500_000}])
    monkeypatch.setattr(compiler, "run", lambda step, target, timeout, dump: (dumped(dump), next(figures))[1])
    written, texts = tmp_path / "found.json", tmp_path / "texts"
    command = (
        f"compile sample_cnn --image-size 16 --batch-size 2 --strategy uniform --json {written} --xla-dump {texts}"
    )
    shown = CliRunner().invoke(cli, command.split())
    assert shown.exit_code == 0, shown.output
    assert shown.output.index("3 MB besides them") < shown.output.index("1.5 MB besides them")
    assert "4.1 MB" in shown.output
    assert "MaxPoolGrad" in shown.output
    assert {path.name for path in texts.iterdir()} == {"plain", "uniform"}
    facts = json.loads(written.read_text())
    assert facts["plain"]["peak_bytes"] == 4_100_000
    assert facts["uniform"]["fits"] is True


@pytest.mark.slow
@pytest.mark.compile
def test_a_plan_needs_less_and_its_buffers_are_those_of_layers(tmp_path):
    model = convolutions(8)
    plain = compiled.compiled_memory(model, 64, optimizer="sgd")
    planned = compiled.compiled_memory(model, 64, tfgc.plan(model, 64), optimizer="sgd", dump=str(tmp_path))
    assert planned.temp_bytes < 0.7 * plain.temp_bytes
    assert planned.argument_bytes == plain.argument_bytes
    assert planned.largest[0].layer.startswith("conv")
    assert planned.largest[0].bytes == 64 * 16 * 16 * 8 * 4
    assert list(tmp_path.glob("*buffer-assignment.txt"))
    assert "not run" in str(planned)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("target", targets.TARGETS)
def test_the_compiler_knows_every_target(target):
    assert compiled.compiled_memory(convolutions(), 4, target=target, optimizer="sgd").temp_bytes > 0


@pytest.mark.slow
@pytest.mark.compile
def test_the_real_compiler_out_of_time_says_so():
    with pytest.raises(tfgc.TfgcError, match=r"more than 0\.1 seconds"):
        tfgc.compiled_memory(convolutions(), 4, timeout=0.1)


def test_jax_is_imported_in_the_child_alone():
    folder = pathlib.Path(tfgc.__file__).parent
    users = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if "jax" in imports(path)}
    assert users == {"_compiled/worker.py"}
    assert "jax" not in sys.modules


def imports(path):
    return {
        line.split()[1].partition(".")[0]
        for line in map(str.strip, path.read_text().splitlines())
        if line.startswith(("import ", "from "))
    }


def test_a_product_that_cannot_be_tiled_is_compiled_by_other_kernels(child, tmp_path):
    child(
        "import json, pathlib, sys\nif 'triton_gemm=false' not in os.environ['XLA_FLAGS']:\n"
        "    sys.exit('Could not find output tile sizes that satisfy the dot')\n"
        "pathlib.Path(reply).write_text(json.dumps({'temp_bytes': 3}))"
    )
    assert compiler.run(b"", targets.find("h100"), 30, tmp_path) == {"temp_bytes": 3}


def test_a_second_attempt_gets_the_seconds_that_are_left(monkeypatch, installed, tmp_path):
    untiled = subprocess.CompletedProcess([], 1, stderr="Could not find output tile sizes")
    ends, given, clock = [(untiled, None), (untiled, {"temp_bytes": 3})], [], iter([100.0, 120.0])

    def attempt(step, target, timeout, dump, flags):
        given.append(timeout)
        return ends.pop(0)

    monkeypatch.setattr(compiler, "_attempt", attempt)
    monkeypatch.setattr(compiler, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    compiler.run(b"", targets.find("h100"), 30, tmp_path)
    assert given == [30, 10]


def layer_of(model, node):
    return next((layer for layer in model.layers if layer.name == node), None)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch", "most"), [("transformer_encoder", 8, 0.25), ("resnet50", 16, 0.29)])
def test_plans_for_xla_hold_by_its_compiler(name, batch, most, tmp_path):
    model = tfgc.zoo.build(name)
    plain = tfgc.compiled_memory(model, batch, optimizer="sgd")
    plan = tfgc.plan(model, batch, strategy="optimal", mode="xla")
    planned = tfgc.compiled_memory(model, batch, plan, optimizer="sgd", dump=str(tmp_path))
    (text,) = (path.read_text() for path in tmp_path.glob("*after_optimizations.txt"))
    runs = tfgc.estimate(model, batch, plan, mode="xla").runs
    convolutions = [count - 1 for node, count in runs.items() if isinstance(layer_of(model, node), L.Conv2D)]
    replayed = re.findall(r'cudnn\$conv.*op_name="(?!.*gradient_tape)[^"]*replay', text)
    assert len(replayed) == sum(convolutions)
    assert planned.temp_bytes <= most * plain.temp_bytes
    for found, chosen in ((plain, None), (planned, plan)):
        step = tfgc.estimate(model, batch, chosen, mode="xla", optimizer="sgd")
        weights = tfgc.estimate(model, batch, optimizer="sgd").fixed_bytes
        assert step.needed_bytes - weights == pytest.approx(found.temp_bytes, rel=0.12)
