"""The house: floors, the wheel, and that the README's promises about the project hold."""

import ast
import configparser
import graphlib
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest
from house import FLOORS

import tfgc

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted((ROOT / "tfgc").rglob("*.py"))
NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
PUBLIC_FACE = {"tfgc", "tfgc.__main__"}
# Lines of a module, at most.
LENGTH = 200


def imported(path, source=None):
    """Modules of tfgc that a file imports, at its top or inside a function: dotted names."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text() if source is None else source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "tfgc")
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) + 1 - node.level], node.module or ""]).rstrip(".")
            base = base if node.level else node.module
            if base.split(".")[0] == "tfgc":
                for alias in node.names:
                    yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in NAMES else base


def folder(name):
    """The folder that a module lies in; empty for those at the top."""
    inside = NAMES[name].relative_to(ROOT / "tfgc").parts[:-1]
    return inside[0] if inside else ""


def test_imports_are_seen_however_they_are_written():
    path = ROOT / "tfgc" / "_core" / "plan.py"
    for source, found in {
        "import tfgc": "tfgc",
        "import tfgc._core.graph as g": "tfgc._core.graph",
        "from tfgc import _units": "tfgc._units",
        "from tfgc._core import graph": "tfgc._core.graph",
        "from tfgc._core.graph import Graph": "tfgc._core.graph",
        "from . import graph": "tfgc._core.graph",
        "from .graph import Graph": "tfgc._core.graph",
        "from .. import _units": "tfgc._units",
        "def f():\n    from .._units import format_bytes": "tfgc._units",
        "import numpy": None,
    }.items():
        assert list(imported(path, source)) == ([found] if found else []), source


def test_every_folder_has_a_floor_and_a_purpose():
    folders = {folder(name) for name in NAMES} - {""}
    assert folders == set(FLOORS)
    for name in folders:
        path = ROOT / "tfgc" / name / "__init__.py"
        body = ast.parse(path.read_text()).body
        assert ast.get_docstring(ast.parse(path.read_text())), path
        assert len(body) == 1 or name in ("zoo", "strategies"), f"{path} holds code"


def test_modules_import_only_from_lower_floors():
    for name in set(NAMES) - PUBLIC_FACE:
        for other in imported(NAMES[name]):
            assert other not in PUBLIC_FACE, f"{name} imports {other}, which stands above it"
            if folder(other) and folder(other) != folder(name):
                assert folder(name), f"{name} imports {other}: files at the top import no folder"
                assert FLOORS.index(folder(other)) < FLOORS.index(folder(name)), f"{name} imports {other}"


def test_no_circle_inside_of_a_folder():
    graphlib.TopologicalSorter(
        {name: set(imported(NAMES[name])) - {name} for name in set(NAMES) - PUBLIC_FACE}
    ).prepare()


def length(name):
    return len((ROOT / "tfgc" / name).read_text().splitlines())


def test_modules_are_one_idea():
    """About 150 lines, as CONTRIBUTING says."""
    for module in MODULES:
        name = str(module.relative_to(ROOT / "tfgc"))
        assert length(name) <= LENGTH, name


def test_the_package_only_shrinks():
    """Towards 18,500 lines. Whoever takes some away lowers this; whoever needs more takes others away."""
    assert sum(map(length, (module.relative_to(ROOT / "tfgc") for module in MODULES))) <= 24_250


def private_reads(source):
    """Private names of TensorFlow or Keras that a file uses: modules, attributes, and attributes named by strings.

    An attribute that starts with an underscore is the file's own if the file assigns or defines it.
    """
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    stored = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    own |= {node.attr for node in stored if getattr(node.value, "id", None) == "self"}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""] + [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            modules = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
        yield from (m for m in modules if m.startswith(("keras.src", "tensorflow.python", "tf.__internal__")))
        if isinstance(node, ast.Attribute):
            of_python = isinstance(node.value, ast.Name) and node.value.id in ("sys", "os")
            private = node.attr.startswith("_") and not node.attr.endswith("__")
            if private and not of_python and node.attr not in own:
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and str(node.value).startswith(("_keras_", "_inbound_", "_outbound_")):
            yield node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("getattr", "setattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value.startswith("_") and not name.value.endswith("__"):
                yield f"{node.func.id} {name.value}"


def test_private_reads_are_seen_however_they_are_written():
    for source in (
        "import keras.src.backend",
        "from keras.src import backend",
        "from keras import src\nsrc = 1\nkeras.src.backend",
        "from tensorflow.python.eager import record",
        "tf.__internal__.FuncGraph('a')",
        "tensor._keras_mask = None",
        "layer._flatten_layers()",
        "class A:\n    def f(self, layer):\n        return self._mine, layer._inbound_nodes",
        "getattr(layer, '_loss_ids')",
        "name == '_keras_logits'",
    ):
        assert list(private_reads(source)), source
    for source in (
        "class A:\n    def f(self, other):\n        self._mine = 1\n        return other._mine",
        "sys._getframe(1)",
        "type(layer).__name__",
        "module._private_function()\ndef _private_function(): pass",
    ):
        assert not list(private_reads(source)), source


def test_private_parts_of_the_frameworks_are_read_in_one_folder():
    read = {name: list(private_reads(path.read_text())) for name, path in NAMES.items() if folder(name) != "_framework"}
    assert {name: found for name, found in read.items() if found} == {}


def test_private_parts_of_the_frameworks_are_few():
    """Each may be another in the next version: what is public does as well in most places."""
    files = [path for name, path in NAMES.items() if folder(name) == "_framework"]
    assert len({name for path in files for name in private_reads(path.read_text())}) <= 43


def test_the_error_about_versions_names_those_that_the_package_declares():
    from tfgc._framework import versions

    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for line in setup["options"]["install_requires"].split():
        for package, label in {"tensorflow": "TensorFlow", "keras": "Keras"}.items():
            if line.startswith(package + ">="):
                assert line.replace(f"{package}>=", f"{label} >= ") in versions.SUPPORTED


def test_a_missing_private_part_is_an_error_that_names_the_supported_versions(monkeypatch):
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    monkeypatch.delattr(keras.Layer, "_flatten_layers")
    with pytest.raises(tfgc.TfgcError, match=r"_flatten_layers.*TensorFlow >= 2\.19 and Keras >= 3\.10"):
        tfgc.plan(model, batch_size=2)


def test_a_name_that_keras_no_longer_keeps_state_under_is_an_error():
    """Asked for an unknown name Keras answers None: replays would lose `training` without a word."""
    from tfgc._framework import keras_state

    assert keras_state.kept_by_name("current_call_ctx") == "current_call_ctx"
    with pytest.raises(tfgc.TfgcError, match=r"keeps no 'renamed_ctx'.*It supports TensorFlow"):
        keras_state.kept_by_name("renamed_ctx")


def test_nothing_refers_to_this_machine_or_to_folders_outside():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tfgc/__init__.py" in listed.split("\n")
    for name in listed.split("\n"):
        path = ROOT / name
        if path.is_file() and path.suffix in (".py", ".md", ".sh", ".cfg", ".toml", ".json", ""):
            text = path.read_text(errors="ignore")
            for word in ("../" + "shared", "/work" + "/", "/opt" + "/tf"):
                assert word not in text, f"{name} mentions {word}"


def test_tests_read_the_allocator_only_in_separate_processes():
    """`memory.info` refuses to read in the process of the tests, and nothing reads past it."""
    readers = [p.name for p in (ROOT / "tests").glob("*.py") if "get_memory" + "_info" in p.read_text()]
    assert readers == ["memory.py"]


def test_no_test_module_is_imported_by_another():
    """What several need lies beside them: models, graphs, how steps and memory are compared."""
    for path in (ROOT / "tests").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                assert not any(name.startswith("test_") for name in names), f"{path.name}: {names}"


@pytest.mark.gate
def test_wheel_contains_every_module(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry = next(n for n in names if n.endswith("entry_points.txt"))
        assert "tfgc = tfgc.__main__:main" in archive.read(entry).decode()
    assert {str(m.relative_to(ROOT)) for m in MODULES} | {"tfgc/_report/templates/report.html.j2"} <= names


def test_what_is_imported_is_declared():
    """At the top of a module what every installation has, inside of functions what an extra adds, too."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")

    def names(text):
        return {re.split(r"[^\w-]", line)[0].lower() for line in text.split("\n") if line}

    required = names(setup["options"]["install_requires"])
    extras = {name for text in setup["options.extras_require"].values() for name in names(text)}
    for module in MODULES:
        tree = ast.parse(module.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
                asked = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                packages = {name.split(".")[0] for name in asked} - set(sys.stdlib_module_names) - {"tfgc"}
                assert packages <= required | (set() if node in tree.body else extras | {"jaxlib"}), (
                    module,
                    packages,
                )


def test_the_stub_has_the_names_that_the_package_gives():
    stub = ast.parse((ROOT / "tfgc" / "__init__.pyi").read_text())
    homes = {alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert homes == {**tfgc._HOME, "strategies": None, "zoo": None}
    (listed,) = (ast.literal_eval(n.value) for n in stub.body if isinstance(n, ast.Assign))
    assert listed == tfgc.__all__


def test_public_names_are_importable():
    for name in tfgc.__all__:
        assert getattr(tfgc, name) is not None
    assert set(tfgc.__all__) <= set(dir(tfgc))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        tfgc.nothing_like_it  # noqa: B018


def test_combinations_that_are_left_to_the_slow_tests_are_there():
    named = (ROOT / "tests" / "combinations.txt").read_text().splitlines()
    assert named
    for file, test in (line.split("::", 1) for line in named):
        assert f"def {test.split('::')[-1].partition('[')[0]}(" in (ROOT / file).read_text(), f"{file} has no {test}"
