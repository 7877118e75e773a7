"""The house: floors, the wheel, and that the README's promises about the project hold."""

import ast
import configparser
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FLOORS = {
    "_errors": 0, "_context": 0, "_flops": 0, "_coupling": 0, "_sheet": 0, "_attached": 0, "_folder": 0,
    "_building": 0,
    "_units": 1, "_graph": 1, "_front": 1, "_case": 1, "_checksum": 1, "_ordering": 1, "_verdict": 1, "_files": 1,
    "_draws": 1, "_inner_functions": 1, "_packing": 1, "_settings": 1, "_traces": 1, "_entry": 1, "_memory": 1,
    "_constants": 1, "_python_random": 1,
    "_results": 2, "_explain": 2, "_order": 2, "_walk": 2, "_allocator": 2, "_buffers": 2, "_functional": 2,
    "_loops": 2, "_parts": 2, "_shapes": 2, "_cli_files": 2,
    "_report": 3, "_plan": 3, "_plan_report": 4, "_canvas": 4, "_tables": 5, "_pictures": 6, "_page": 7,
    "bench": 3, "_limit": 3,
    "_stretch": 3, "_fragments": 3, "_trace": 3, "_effects": 3, "_opgraph": 3,
    "_simulate": 4, "_costs": 4, "_replay": 4, "_repeat": 4, "_synthetic": 4,
    "_judge": 5, "_paths": 5, "_nested": 5, "_timing": 5, "_block": 5, "_twins": 5,
    "strategies": 6, "_sizes": 6, "_fitting": 6,
    "_recompute": 6, "_planner": 7, "_segments": 7, "_layers": 7,
    "_enable": 8, "_train": 8, "_split": 8, "_sweep": 8, "zoo": 8,
    "_foresee": 9, "_reach": 9, "_peers": 9, "_torch_peer": 9, "_child": 10, "_verify": 9, "_cli_options": 9,
    "_measure": 10,
    "_search": 11, "_bench": 12,
    "commands": 13, "_cli": 14, "__main__": 15, "__init__": 15,
}  # fmt: skip
MODULES = sorted((ROOT / "tfgc").rglob("*.py"))


def floor(module):
    """The floor of a module file, and the name it stands under in the table."""
    name = module.relative_to(ROOT / "tfgc").parts[0].removesuffix(".py")
    return FLOORS[name], name


def imported(module):
    """Modules of tfgc that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tfgc":
            inside = node.module.split(".")[1:]
            yield from ([inside[0]] if inside else [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tfgc."))


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_modules_import_only_from_lower_floors(module):
    height, name = floor(module)
    for other in imported(module):
        if other in FLOORS and other != name:
            assert FLOORS[other] < height, f"{name} imports {other}"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_modules_are_one_idea(module):
    assert len(module.read_text().splitlines()) <= 300


def test_only_three_files_touch_private_parts_of_the_frameworks():
    """Imports of private modules stand in `_trace` (Keras graphs), `_building` (graphs being built) and `_context`."""
    for module in MODULES:
        text = module.read_text()
        if module.name not in ("_trace.py", "_building.py", "_context.py"):
            assert "keras.src" not in text, module
            assert "tensorflow.python" not in text, module


def test_nothing_refers_to_this_machine_or_to_folders_outside():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    for name in listed.split("\n"):
        path = ROOT / name
        if path.is_file() and path.suffix in (".py", ".md", ".sh", ".cfg", ".toml", ".json", ""):
            text = path.read_text(errors="ignore")
            for word in ("../" + "shared", "/work" + "/", "/opt" + "/tf"):
                assert word not in text, f"{name} mentions {word}"


def test_tests_read_the_allocator_only_in_processes_of_their_own():
    """`memory.info` refuses to read in the process of the tests, and nothing reads past it."""
    readers = [p.name for p in (ROOT / "tests").glob("*.py") if "get_memory" + "_info" in p.read_text()]
    assert readers == ["memory.py"]


@pytest.mark.gate
def test_wheel_contains_every_module_and_declares_what_is_imported(tmp_path):
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
    assert {str(m.relative_to(ROOT)) for m in MODULES} | {"tfgc/templates/report.html.j2"} <= names
    assert {str(p.relative_to(ROOT)) for p in (ROOT / "tfgc" / "bench" / "reference").iterdir()} <= names
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    declared = setup["options"]["install_requires"].lower()
    top_level = {
        alias.split(".")[0]
        for module in MODULES
        for node in ast.parse(module.read_text()).body
        for alias in ([a.name for a in node.names] if isinstance(node, ast.Import) else [])
    }
    for package in top_level - set(sys.stdlib_module_names) - {"tfgc"}:
        assert package in declared, package


def test_public_names_are_importable():
    import tfgc

    for name in tfgc.__all__:
        assert getattr(tfgc, name) is not None
    assert set(tfgc.__all__) <= set(dir(tfgc))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        tfgc.nothing_like_it  # noqa: B018
