"""Run the tests on the oldest and the newest TensorFlow and Keras that setup.cfg allows, each in its own environment.

    python scripts/versions.py                        # both, the fast suite
    python scripts/versions.py oldest --slow          # and the slow tests
    python scripts/versions.py -- tests/test_fit.py   # arguments of pytest

Needs the standard library alone; PYTHON selects the one that environments are made with. They are made in --folder, and
used again by the next run. Prints a row for each and the tests that failed, and ends with 1 if any did.

Each file of tests that has slow ones runs in processes of its own, as TensorFlow's compiler does not bear thousands of
functions in one. A file that passed is not run again at the same commit, so a run that was stopped can be gone on with.
"""

import argparse
import collections
import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tfgc-versions"
CHOSEN = ("tensorflow", "keras")
SHOWN = (*CHOSEN, "numpy")
COUNTS = ("passed", "failed", "skipped")
ENDED = (0, 1, 5)  # pytest's codes for tests that passed, that failed, and for none that was selected
NOT_HERE = "not gpu and not notebook and not compile"
FAST = f"not slow and not gate and {NOT_HERE}"


def requirements(which: str) -> list[str]:
    """What pip is to install of TensorFlow and Keras.

    >>> requirements("newest")
    ['tensorflow', 'keras']
    """
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"].split("\n")
    least = dict(re.fullmatch(r"(\w+)>=([\d.]+)", line).groups() for line in lines if line.startswith(CHOSEN))
    return [f"{name}=={least[name]}" if which == "oldest" else name for name in CHOSEN]


def environment(folder: pathlib.Path) -> pathlib.Path:
    """The Python of an environment in a folder, with tfgc as it is here, and what its tests need."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([os.environ.get("PYTHON", sys.executable), "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*install, *requirements(folder.name), "--editable", f"{ROOT}[dev]"], check=True)
    return python


def versions(python: pathlib.Path) -> list[str]:
    code = f"import importlib.metadata as m; print(*(m.version(name) for name in {SHOWN!r}))"
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.split()


def runs(python: pathlib.Path, slow: bool, arguments: list[str]) -> dict[str, list[str]]:
    """The runs of pytest, by name, and what selects the tests of each."""
    if not slow:
        return {"fast": ["-m", FAST, *arguments]}
    marks = ["-m", f"slow and {NOT_HERE}"]
    fast = {"fast": ["-m", f"not slow and {NOT_HERE}", *arguments]}
    if arguments:
        return {"slow": [*marks, *arguments], **fast}
    ask = [str(python), "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *marks]
    found = subprocess.run(ask, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name: [*marks, f"tests/{name}.py"] for name in re.findall(r"^tests/(\w+)\.py::", found, re.M)} | fast


def reports(folder: pathlib.Path, arguments: list[str]) -> pathlib.Path:
    """Where this run's reports are; with those of earlier ones if they ran the same tests at the same commit."""
    ask = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    commit = subprocess.run(ask, check=False, capture_output=True, text=True).stdout.strip()
    at = folder / "reports" / ("chosen" if arguments else commit or "unknown")
    if arguments or not commit or commit.endswith("-dirty"):
        shutil.rmtree(at, ignore_errors=True)
    at.mkdir(parents=True, exist_ok=True)
    return at


def tested(python: pathlib.Path, report: pathlib.Path, selected: list[str]) -> None:
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    ended = subprocess.run([*command, f"--junitxml={report}", *selected], cwd=ROOT, env=environ, check=False)
    if ended.returncode not in ENDED:  # a run that was stopped reports what passed before
        report.unlink(missing_ok=True)


def counted(report: pathlib.Path) -> tuple[collections.Counter, list[str]]:
    """How many tests of a report passed, failed and were skipped, and the names of those that failed."""
    if not report.exists():
        return collections.Counter(failed=1), [f"{report.stem}: pytest did not run to its end"]
    suite = next(ElementTree.parse(report).iter("testsuite"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}: {(fault.get('message') or '').partition(chr(10))[0][:120]}"
        for case in suite.iter("testcase")
        for fault in [*case.findall("failure"), *case.findall("error")][:1]
    ]
    skipped = int(suite.get("skipped", 0))
    passed = int(suite.get("tests", 0)) - len(failed) - skipped
    return collections.Counter(passed=passed, failed=len(failed), skipped=skipped), failed


def all_tested(python: pathlib.Path, slow: bool, arguments: list[str]) -> tuple[collections.Counter, list[str]]:
    """The counts and failures of all runs, of which those that passed at this commit are read from their reports."""
    folder = python.parent.parent
    at = reports(folder, arguments)
    total, faults = collections.Counter(), []
    for name, selected in runs(python, slow, arguments).items():
        report = at / f"{name}.xml"
        if not report.exists() or counted(report)[1]:
            print(f"{folder.name}: {name}", flush=True)
            tested(python, report, selected)
        counts, failed = counted(report)
        total += counts
        faults += failed
    return total, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=("oldest", "newest", []), help="default: both")
    parser.add_argument("--slow", action="store_true", help="run the slow tests and those of the gate as well")
    parser.add_argument(
        "--folder", type=pathlib.Path, default=CACHE, help="where environments are (default: %(default)s)"
    )
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    chosen = parser.parse_args(words[:end])
    rows, faults = [], []
    for which in chosen.which or ("oldest", "newest"):
        python = environment(chosen.folder / which)
        counts, failed = all_tested(python, chosen.slow, words[end + 1 :])
        rows.append([which, *versions(python), *(str(counts[name]) for name in COUNTS)])
        faults += [f"{which}: {name}" for name in failed]
    heads = ["environment", *SHOWN, *COUNTS]
    widths = [max(map(len, column)) for column in zip(heads, *rows)]
    for row in [heads, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(*faults, sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
