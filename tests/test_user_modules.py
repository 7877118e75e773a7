"""The current folder: what was named is imported from there, and nothing else, in commands and in their children."""

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest

# What Keras, TensorFlow and rich try for, installed or not.
OPTIONAL = {"jax", "torch", "pandas", "IPython", "openvino", "tensorflow_text", "pydot", "tensorboard", "sitecustomize"}
STRAYS = {
    *(name for name in sys.stdlib_module_names if not name.startswith("_")),
    *(name for name in importlib.metadata.packages_distributions() if name.isidentifier() and name[0] != "_"),
    *OPTIONAL,
} - {"tests", "test_user_modules"}

NETS = """
import statistics

import blocks


def build():
    from parts import head

    assert statistics.mean([1, 3]) == 2
    return head.ended(blocks.stack())
"""
BLOCKS = """
import keras


def stack():
    import late

    return keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(late.UNITS) for _ in range(4))])
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a stray file of every name that someone may import, and a network in several modules."""
    for name in STRAYS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the stray {name} was imported')")
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "blocks.py").write_text(BLOCKS)
    (tmp_path / "late.py").write_text("UNITS = 8")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from . import head")
    (tmp_path / "parts" / "head.py").write_text("import late\nended = lambda model: model")
    return tmp_path


def run(folder, *command):
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False, timeout=200)
    assert "stray" not in done.stdout + done.stderr, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(folder, code):
    """Run code that sets up the finder as a command does, without any framework."""
    start = f"import sys, os; from tfgc import _user_modules; _user_modules.install([{str(folder)!r}])\n"
    return run(folder, sys.executable, "-P", "-c", start + code)


INSTALLED = pathlib.Path(sys.executable).parent / "tfgc"


@pytest.mark.gate
def test_the_installed_command_imports_only_what_is_named(folder):
    assert run(folder, INSTALLED, "plan", "nets:build", "--batch-size", "2").startswith("nets:build, batch 2: optimal")


@pytest.mark.gate
def test_python_m_and_its_child_import_only_what_is_named(folder):
    # These are imported before any of tfgc's code is.
    for name in ("runpy", "pkgutil", "importlib", "zipimport", "tfgc"):
        (folder / f"{name}.py").unlink()
    told = run(
        folder, sys.executable, "-m", "tfgc", "max-batch", "nets:build", "--budget", "100MB", "--no-confirm", "--json"
    )
    assert '"network": "nets:build"' in told


def test_a_stray_without_a_framework_in_sight(folder):
    assert "gpt" in run(folder, INSTALLED, "zoo", "gpt")


@pytest.mark.parametrize(
    "asks",
    [
        "import jax",
        "import importlib; importlib.import_module('jax')",
        "import json, torch",
        "from tfgc._records import front as m; exec('import late', vars(m))",
    ],
)
def test_nobody_else_finds_a_file_of_the_folder(folder, asks):
    code = f"_user_modules.module('late')\ndel sys.modules['late']\ntry:\n  exec({asks!r}, {{'__name__': 'other'}})\n"
    assert python(folder, code + "except ModuleNotFoundError as e: print('not found', e.name)").startswith("not found")


def test_modules_of_the_folder_find_their_siblings_at_any_time(folder):
    (folder / "lazy.py").write_text(
        "def go():\n  import late\n  from parts import head\n  return late.UNITS, head.late"
    )
    code = "found = _user_modules.module('lazy'); print(found.go()[0], found.go()[1] is sys.modules['late'])"
    assert python(folder, code) == "8 True\n"


def test_a_named_file_with_the_name_of_an_installed_module_is_an_error(folder):
    code = "try: _user_modules.module('statistics')\nexcept ImportError as error: print(error)"
    assert python(folder, code) == (
        "'statistics' in the current folder has the name of an installed module: rename it\n"
    )


def test_a_named_package_with_the_name_of_an_installed_one_is_an_error(folder):
    (folder / "json.py").unlink()
    (folder / "json").mkdir()
    (folder / "json" / "__init__.py").write_text("")
    (folder / "json" / "nets.py").write_text("")
    code = (
        "print(_user_modules.module('json.decoder').__name__)\n"
        "try: _user_modules.module('json.nets')\nexcept ImportError as error: print(error)"
    )
    assert python(folder, code).splitlines() == [
        "json.decoder",
        "No module named 'json.nets'; 'json' in the current folder has the name of an installed module: rename it",
    ]


def test_without_a_command_modules_are_imported_as_python_does(folder):
    code = (
        "import sys; from tfgc import _user_modules; sys.path.append('parts'); "
        "print(_user_modules.module('head').late.UNITS)"
    )
    (folder / "parts" / "late.py").write_text("UNITS = 9")
    assert run(folder, sys.executable, "-P", "-c", code) == "9\n"


@pytest.mark.parametrize("asked", [True, False])
def test_a_child_gets_the_path_without_what_python_put_there(folder, asked, monkeypatch):
    script = folder / "parts" / "script.py"
    script.write_text(
        "import os, sys; sys.path.insert(0, '/mine/first'); from tfgc import _user_modules; "
        "path, folders = _user_modules.for_child(); print(path.split(os.pathsep)[:2]); print(folders); "
        "print(path.split(os.pathsep).count(os.getcwd()), [p for p in sys.path if p not in path])"
    )
    monkeypatch.setenv("PYTHONPATH", f"{folder}:" if asked else "")
    if asked:
        for stray in STRAYS:
            (folder / f"{stray}.py").unlink()
    told = run(folder, sys.executable, script).splitlines()
    assert told[0].startswith(f"['/mine/first', '{folder}']" if asked else "['/mine/first', ")
    assert told[1] == str([str(folder), str(script.parent)])
    assert told[2] == f"{int(asked)} {[str(script.parent)]}"


def test_functions_of_a_script_and_its_modules_reach_the_child(folder):
    """By value from `__main__`, by name from other modules; the child finds what they import."""
    (folder / "child.py").write_text(
        "import pickle, sys; from tfgc import _user_modules; "
        "_user_modules.install([sys.argv[1]], trusted=('__main__',)); "
        "print([f() for f in pickle.load(sys.stdin.buffer)])"
    )
    code = (
        "import sys, subprocess, cloudpickle; sys.path.append(''); import lazy\n"
        "def mine():\n  import late\n  return late.UNITS\n"
        "told = cloudpickle.dumps([mine, lazy.go])\n"
        "child = [sys.executable, '-P', '-c', open('child.py').read(), sys.argv[1]]\n"
        "subprocess.run(child, input=told, check=True)"
    )
    (folder / "lazy.py").write_text("import late\ngo = lambda: late.UNITS + 1\n")
    assert run(folder, sys.executable, "-P", "-c", code, folder) == "[8, 9]\n"
