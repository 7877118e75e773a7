"""The README's Python runs, its tables are what the scripts print, and what it names exists."""

import importlib.util
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent


def test_readme_examples_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(examples) == 4
    names = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)


def test_readme_tables_are_what_the_scripts_print():
    printed = [
        line
        for script in ("benchmark.py", "best_plans.py", "fit_speed.py")
        for line in subprocess.run(
            [sys.executable, ROOT / "scripts" / script, "--table"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]
    rows = [
        line for line in (ROOT / "README.md").read_text().splitlines() if re.match(r"\| \w+(\(.*?\))?(, \d+)? \|", line)
    ]
    figures = [row for row in rows if not row.startswith("| network")]
    assert len(figures) >= 21
    for row in figures:
        # The README may leave the last columns out.
        assert any(line.startswith(row) for line in printed), row


def test_readme_names_scripts_that_exist():
    for name in re.findall(r"scripts/[\w./]+", (ROOT / "README.md").read_text()):
        assert (ROOT / name.rstrip(".")).exists(), name


def test_page_of_what_works_is_what_the_tables_say():
    spec = importlib.util.spec_from_file_location("page_of_what_works", ROOT / "scripts" / "matrix.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text() == script.page(), "run python scripts/matrix.py"
