"""The Python of the README and of the pages runs; the pages build, and name what there is."""

import doctest
import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest
from house import FLOORS

import tfgc
from tfgc import _errors
from tfgc._cli.group import cli
from tfgc._framework import layer_values
from tfgc._planning import watch
from tfgc._training import planned_calls

ROOT = pathlib.Path(__file__).parent.parent
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = {str(p.relative_to(ROOT)): p.read_text() for p in FILES}
EXAMPLES = {name: re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) for name, text in PAGES.items()}
LONG = ("docs/getting-started.md", "docs/nested-train-steps.md", "docs/training-loops.md")
# No page is fetched: a proxy that is not there answers.
OFFLINE = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https")}


def script_of(name):
    """A file of `scripts/` as a module."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "scripts" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=[pytest.mark.gate] if name in LONG else [])
        for name, blocks in EXAMPLES.items()
        if blocks
    ],
)
def test_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in EXAMPLES[page]:
        exec(compile(example, page, "exec"), names)


FIGURES = {
    "docs/training-loops.md": {"separate plans, up to eight;": planned_calls._MOST_PLANS == 8},
    "docs/limitations.md": {
        "numbers change inside of a list or an array of up to 64": layer_values._MOST_NUMBERS == 64,
    },
    "docs/memory-budgets.md": {
        "At most four plans are run": watch.MOST_CHANGES == 3,
    },
}


def test_figures_of_pages_are_those_of_the_code():
    for page, figures in FIGURES.items():
        for words, is_so in figures.items():
            assert words in " ".join(PAGES[page].split()), words
            assert is_so, words


def test_the_plan_that_a_page_prints_is_the_one_that_its_example_makes(capsys):
    page = "docs/how-it-works.md"
    for example in EXAMPLES[page]:
        exec(compile(example, page, "exec"), {})
    (printed,) = re.findall(r"```text\n(.*?)```", PAGES[page], flags=re.DOTALL)
    assert capsys.readouterr().out == printed


def test_figures_of_the_pages_are_what_the_script_draws():
    script = script_of("figures")
    for name, picture in script.pictures().items():
        drawn = (script.IMAGES / name).read_text()
        words = [
            re.findall(r"<desc.*?</desc>|<text.*?</text>", text)
            for text in (drawn, script.standalone(picture, name[:-4]))
        ]
        assert words[0] == words[1] != [], "run python scripts/figures.py"
        assert len(drawn) < 200_000
        assert sum(f"![{picture.alt_text}](" in text and f"images/{name})" in text for text in PAGES.values()) == 1


def test_every_error_and_warning_is_on_the_troubleshooting_page():
    kinds = (value for value in vars(_errors).values() if isinstance(value, type) and issubclass(value, Exception))
    for kind in kinds:
        assert kind.__name__ in PAGES["docs/troubleshooting.md"], kind


def test_pages_that_teach_have_examples():
    teaching = (
        "getting-started", "how-it-works", "choosing-a-strategy", "memory-budgets", "training-loops",
        "subclassed-models", "nested-train-steps", "verifying", "distributed", "write-a-strategy",
    )  # fmt: skip
    assert {"README.md", *(f"docs/{name}.md" for name in teaching)} <= {n for n, blocks in EXAMPLES.items() if blocks}


def test_tables_are_what_the_scripts_print():
    printed = [
        line
        for script in (
            "benchmark.py",
            "fit_speed.py",
            "keras_tests.py",
            "kerashub.py",
            "pypi_models.py",
            "slices.py",
            "contrastive.py",
        )
        for line in subprocess.run(
            [sys.executable, ROOT / "scripts" / script, "--table"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]
    for page, least in (("README.md", 6), ("docs/benchmarks.md", 11)):
        rows = [line for line in PAGES[page].splitlines() if re.match(r"\| \w+(\(.*?\))?(, \d+)? \|.*\d", line)]
        figures = [row for row in rows if not row.startswith("| network")]
        assert len(figures) >= least
        for row in figures:
            # A page may leave the last columns out.
            assert any(line.startswith(row) for line in printed), row


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_files_that_exist(page):
    text = PAGES[page]
    for name in re.findall(r"\b(?:scripts|tests|tfgc)/[\w./-]+", text):
        assert (ROOT / name.rstrip(".")).exists(), name
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert ((ROOT / page).parent / link).exists(), link


def test_design_lists_the_folders_from_the_ground_up_and_names_modules_that_exist():
    page = PAGES["docs/design.md"]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, flags=re.MULTILINE)
    assert tuple(folder for folder, _ in rows) == FLOORS
    for folder, files in rows:
        assert all((ROOT / "tfgc" / folder / name).exists() for name in re.findall(r"`([\w.]+)`", files)), folder
    named = re.findall(rf"`({'|'.join(FLOORS)})\.(\w+)", page)
    assert len(named) > 10
    for folder, module in named:
        assert (ROOT / "tfgc" / folder / f"{module}.py").exists(), f"{folder}.{module}"


def test_the_guide_lists_every_strategy():
    rows = re.findall(r"^\| `(\w+)` \|", PAGES["docs/choosing-a-strategy.md"], flags=re.MULTILINE)
    assert sorted(rows) == tfgc.strategies.available()


def test_every_public_function_has_an_example():
    """Doctests run them; `compare` starts processes, and the commands that are tested call it."""
    functions = {name: getattr(tfgc, name) for name in tfgc.__all__ if inspect.isfunction(getattr(tfgc, name))}
    functions |= {f"strategies.{name}": tfgc.strategies.get(name) for name in tfgc.strategies.available()}
    assert {name for name, function in functions.items() if ">>>" not in function.__doc__} <= {"compare"}


@pytest.mark.gate
def test_pages_build_and_the_reference_has_every_public_name(tmp_path):
    """Without network; a warning, such as a broken reference, fails."""
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*command, "docs", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **OFFLINE},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
    reference = (tmp_path / "api.html").read_text()
    wanted = [f"tfgc.{name}" for name in tfgc.__all__ if name not in ("strategies", "zoo")]
    wanted += [f"tfgc.strategies.{name}.plan" for name in tfgc.strategies.available()]
    wanted += ["module-tfgc.strategies", "module-tfgc.zoo", "tfgc.strategies.available"]
    wanted += [f"tfgc.zoo.{name}" for name in tfgc.zoo.__all__]
    missing = [name for name in wanted if f'id="{name}"' not in reference]
    assert not missing, f"put {missing} into docs/api.md"
    assert all(f'.{name}">' in reference for name in tfgc.zoo.available())
    commands = (tmp_path / "command-line.html").read_text()
    assert all(f'id="tfgc-{name}"' in commands for name in cli.commands)


def test_commands_of_a_page_are_found():
    script = script_of("readme_commands")
    assert doctest.testmod(script) == (0, 1)
    found = [command for page in script.PAGES for command in script.commands(PAGES[page])]
    assert "scripts/demo.sh" in found
    # Each is one of the group's: the whole is run by .ci/run.
    assert {command.split()[1] for command in found if command.startswith("tfgc ")} <= set(cli.commands)


def test_a_written_page_is_what_the_tables_say():
    script = script_of("matrix")
    assert script.PAGE.read_text() == script.page(), "run python scripts/matrix.py"
