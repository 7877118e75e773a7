"""What the shell scripts set up, with a stand-in for the Python of an environment."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
SETTING_UP = {"test.sh": "3.1 GB", "docs.sh": "2.2 GB", "demo.sh": "2.5 GB", "compile_tests.sh": "8.6 GB"}


@pytest.mark.parametrize(("script", "size"), SETTING_UP.items())
def test_a_script_uses_the_environment_that_it_is_given_and_says_how_large_it_is(script, size, tmp_path):
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/commands\n')
    python.chmod(0o755)
    # Relative to the user's folder, not to the clone.
    environment = {"VENV": "env", "PATH": "/usr/bin:/bin"}
    command = ["bash", ROOT / "scripts" / script, "--given"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert f"into {tmp_path}/env: about {size}" in done.stderr
    installing, running = (tmp_path / "commands").read_text().splitlines()
    assert "pip install" in installing
    assert "--given" in running


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_names_an_environment_but_the_default(script):
    assert ".venv/" not in script.read_text()
