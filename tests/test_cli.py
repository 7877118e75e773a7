"""The shell: what all commands share, exit codes, completion, and that nothing is left behind."""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import psutil
import pytest
import tensorflow
from click.testing import CliRunner

from tfgc._cli import options
from tfgc._cli.group import cli
from tfgc._records import results_json
from tfgc._records.measurement import Results, Study

COMMANDS = ["compare", "compile", "explain", "info", "max-batch", "plan", "report", "sweep", "verify", "zoo"]


def tfgc(*arguments, **environment):
    """Run the command as a user does, in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "tfgc", *map(str, arguments)],
        capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=120,
    )  # fmt: skip


def test_every_command_is_there_and_takes_json():
    assert sorted(cli.commands) == COMMANDS
    for name, command in cli.commands.items():
        assert any(option.name == "json_path" for option in command.params), name
        assert command.help, name


def test_help_starts_at_once_without_any_framework():
    code = (
        "import sys; from tfgc._cli.group import cli; from click.testing import CliRunner; "
        "asked = [['-h'], ['--help'], *([name, '-h'] for name in cli.commands)]; "
        "assert all('Usage' in CliRunner().invoke(cli, words).output for words in asked); "
        "sys.exit(' '.join({'tensorflow', 'keras', 'numpy', 'matplotlib', 'jinja2'} & set(sys.modules)) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_list_of_commands_says_in_full_what_each_does():
    """Click cuts a summary that is too long for the line."""
    listed = CliRunner().invoke(cli, ["--help"], terminal_width=80).output.partition("Commands:")[2].strip()
    assert len(listed.splitlines()) == len(COMMANDS)
    assert "..." not in listed


def test_zoo_lists_networks_as_a_table_and_as_json():
    told = CliRunner().invoke(cli, ["zoo", "cnn"])
    assert "sample_cnn" in told.output
    assert "resnet50" not in told.output
    listed = json.loads(CliRunner().invoke(cli, ["zoo", "--json"]).output)
    assert {"gpt", "unet", "resnet50"} <= {network["name"] for network in listed}


@pytest.mark.gate
def test_info_prints_versions_devices_and_memory_without_noise():
    done = tfgc("info", "--json")
    facts = json.loads(done.stdout)
    assert done.stderr == ""
    assert {"tfgc", "tensorflow", "keras", "python"} <= set(facts["versions"])
    assert facts["devices"][0]["free_bytes"] > 0
    assert 0 < facts["free_bytes"] <= facts["memory_bytes"]


def test_info_knows_what_is_imported_whatever_its_package_is_called(monkeypatch):
    """Such as tf-nightly, or tfgc on the path and not installed."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    told = CliRunner().invoke(cli, ["info"]).output
    for module in (tensorflow, keras, np, sys.modules["tfgc"]):
        assert f" {module.__version__}\n" in told
    assert "tfgc[]" not in told
    assert 'scipy            not installed: pip install "tfgc[ilp]"' in told


def test_json_goes_to_the_output_or_beside_it(tmp_path):
    path = tmp_path / "facts.json"
    told = Results((Study("net", 8),), "tfgc")
    assert not options.emit_json(told, None)
    assert not options.emit_json(told, str(path))
    assert results_json.read(path) == told
    result = CliRunner().invoke(cli, ["zoo", "gpt", "--json", str(path)])
    assert "GPT" in result.output
    assert json.loads(path.read_text())[0]["name"] == "gpt"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["zoo", "--json", "gpt"], 2, "does not end in .json"),
        (["zoo", "--json", "/no/such/folder/x.json"], 1, "tfgc: cannot write '/no/such/folder/x.json'"),
        (["plan"], 2, "Missing argument 'NAME'"),
        (["nothing"], 2, "No such command 'nothing'"),
    ],
)
def test_mistakes_give_one_line_and_an_exit_code(arguments, code, words):
    done = tfgc(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "offers"),
    [("tfgc pl", {"plan"}), ("tfgc plan dens", {"densenet121", "densenet201"}), ("tfgc plan u", {"unet"})],
)
def test_shells_complete_commands_and_networks(line, offers):
    words = line.split()
    done = tfgc(_TFGC_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    found = {entry.partition(",")[2] for entry in done.stdout.split()}
    assert offers <= found
    assert all(word.startswith(words[-1]) for word in found)


@pytest.mark.gate
def test_an_interrupt_ends_with_its_code_and_leaves_no_child_behind():
    parent = subprocess.Popen(
        [sys.executable, "-m", "tfgc", "compare", "sample_cnn", "--batch-size", "16"],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        # What a shell starts in the background ignores interrupts, and so would what the tests start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        children = []
        for _ in range(200):
            time.sleep(0.1)
            children = psutil.Process(parent.pid).children()
            if children:
                break
        time.sleep(1)
        os.kill(parent.pid, signal.SIGINT)
        _, said = parent.communicate(timeout=30)
    finally:
        parent.kill()
    assert children
    assert parent.returncode == 130
    assert "tfgc: interrupted" in said
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


@pytest.mark.parametrize("name", ["click", "tfgc._cli.commands.zoo"])
def test_an_interrupt_while_the_command_is_loaded_ends_with_its_code(name):
    code = (
        "import sys, tfgc.__main__\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {name!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt()); tfgc.__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "zoo"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tfgc: interrupted\n")


def test_an_interrupt_that_an_import_takes_for_a_missing_package_ends_with_its_code():
    """As Keras does where optree's native code is interrupted."""
    code = (
        "import os, signal, sys, time, tfgc.__main__\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tfgc.zoo':\n"
        "            try: os.kill(os.getpid(), signal.SIGINT); time.sleep(1)\n"
        "            except KeyboardInterrupt: raise ImportError('pip install it')\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Interrupt()); tfgc.__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "zoo"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tfgc: interrupted\n")


@pytest.mark.gate
def test_planning_that_is_killed_twice_ends_the_command_with_a_line():
    command = [sys.executable, "-m", "tfgc", "compare", "sample_cnn", "--batch-size", "16"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    killed = set()
    while parent.poll() is None:
        for child in psutil.Process(parent.pid).children():
            if child.pid not in killed:
                time.sleep(0.5)
                with contextlib.suppress(psutil.NoSuchProcess):  # A library may start a program that ends by itself.
                    child.kill()
                    killed.add(child.pid)
        time.sleep(0.05)
    _, said = parent.communicate()
    assert (parent.returncode, len(killed)) == (1, 2)
    assert "tfgc: 'sample_cnn' cannot be built and planned: died of SIGKILL (killed, as the system does" in said


@pytest.mark.gate
def test_memory_that_the_shell_limits_is_named():
    command = shlex.join([sys.executable, "-m", "tfgc", "compare", "sample_cnn", "--batch-size", "2"])
    done = subprocess.run(["bash", "-c", f"ulimit -v 1000000; {command}"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "tfgc: 'sample_cnn' cannot be built and planned: ran out of memory"


@pytest.mark.gate
def test_the_demo_hides_the_banner_of_tensorflow():
    """Up to its data, which is left out here."""
    scripts = str(pathlib.Path(__file__).parent.parent / "scripts")
    code = (
        f"import sys; sys.path.insert(0, {scripts!r}); sys.modules['sklearn'] = sys.modules['sklearn.datasets'] = sys\n"
        "import demo\ntry: demo.train('plain')\nexcept ImportError as error: assert 'load_digits' in str(error)\n"
        "import tensorflow as tf; tf.config.list_logical_devices(); assert not tf.zeros(3).numpy().any()"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
