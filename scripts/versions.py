"""Run the tests on the oldest and the newest TensorFlow and Keras that setup.cfg allows, each in its own environment.

    python scripts/versions.py                        # both, the fast suite
    python scripts/versions.py oldest --slow          # and the slow tests
    python scripts/versions.py -- tests/test_fit.py   # arguments of pytest

Needs the standard library alone; PYTHON selects the one that environments are made with. They are made in --folder, and
used again by the next run. Prints a row for each and the tests that failed, and ends with 1 if any did.
"""

import argparse
import configparser
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tfgc-versions"
CHOSEN = ("tensorflow", "keras")
SHOWN = (*CHOSEN, "numpy")
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


def tested(python: pathlib.Path, report: pathlib.Path, marks: str, arguments: list[str]) -> tuple[dict, list[str]]:
    """How many tests passed, failed and were skipped, and the names of those that failed."""
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    options = ["-m", marks, f"--junitxml={report}", *arguments]
    subprocess.run([*command, *options], cwd=ROOT, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}, check=False)
    if not report.exists():
        return {"passed": 0, "failed": 1, "skipped": 0}, ["pytest did not run to its end"]
    suite = next(ElementTree.parse(report).iter("testsuite"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}: {(fault.get('message') or '').partition(chr(10))[0][:120]}"
        for case in suite.iter("testcase")
        for fault in [*case.findall("failure"), *case.findall("error")][:1]
    ]
    skipped = int(suite.get("skipped", 0))
    counts = {"passed": int(suite.get("tests", 0)) - len(failed) - skipped, "failed": len(failed), "skipped": skipped}
    return counts, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", choices=("oldest", "newest", []), help="default: both")
    parser.add_argument("--slow", action="store_true", help="run the slow tests and those of the gate, too")
    parser.add_argument(
        "--folder", type=pathlib.Path, default=CACHE, help="where environments are (default: %(default)s)"
    )
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    chosen = parser.parse_args(words[:end])
    rows, faults = [], []
    for which in chosen.which or ("oldest", "newest"):
        folder = chosen.folder / which
        python = environment(folder)
        counts, failed = tested(python, folder / "report.xml", NOT_HERE if chosen.slow else FAST, words[end + 1 :])
        rows.append([which, *versions(python), *map(str, counts.values())])
        faults += [f"{which}: {name}" for name in failed]
    heads = ["environment", *SHOWN, "passed", "failed", "skipped"]
    widths = [max(map(len, column)) for column in zip(heads, *rows)]
    for row in [heads, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(*faults, sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
