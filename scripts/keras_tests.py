#!/usr/bin/env python3
"""Run the tests of the installed Keras with tfgc forced on.

python scripts/keras_tests.py             run the files that have no results yet, about an hour on two cores
python scripts/keras_tests.py --sample    run a few files, in less than a minute; fail if anything is wrong
python scripts/keras_tests.py --table     print the table of the saved results

Tests of models, trainers, callbacks and optimizers run plain, and with every model enabled, its steps cut at random. In
tests of layers, three training steps follow each `run_layer_test`, plain against recomputed. Each file runs in its own
process, forked from one that has imported TensorFlow, so that one that crashes or hangs is a row of the table.
"""

import argparse
import collections
import importlib.metadata
import itertools
import json
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "scripts" / "results" / "keras-tests.json"
sys.path.insert(0, str(ROOT / "tests"))

AREAS = ("models", "trainers", "callbacks", "optimizers", "layers")
SAMPLE = (
    "layers/normalization/batch_normalization_test.py",
    "models/cloning_test.py",
    "layers/regularization/dropout_test.py",
)
COLUMNS = {
    "tests": "tests", "comparisons": "comparisons", "mismatches": "mismatches", "crashes": "crashes",
    "kept": "kept with a warning", "plain": "plain fails or is too slow", "enabled": "models enabled",
    "replays": "steps and calls rewritten",
}  # fmt: skip


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sample", action="store_true", help="run a few files, fail if anything is wrong")
    options.add_argument("--table", action="store_true", help="print the table of the saved results and run nothing")
    options.add_argument("--again", action="store_true", help="discard the saved results")
    options.add_argument("--jobs", type=int, default=2, help="files to run at a time (default: 2)")
    options.add_argument("--minutes", type=float, default=60, help="start no file after this time (default: 60)")
    options.add_argument("files", nargs="*", help="run only these, such as layers/rnn/gru_test.py")
    options = options.parse_args()
    if options.table:
        print(*table(json.loads(RESULTS.read_text())), sep="\n")
        return 0
    import keras_files  # imports TensorFlow

    done = {"versions": versions(), "found": collections.Counter(_area(file) for file in found()), "files": {}}
    keep = not (options.sample or options.again)
    if keep and RESULTS.exists():
        before = json.loads(RESULTS.read_text())
        done["files"] = before["files"] if before["versions"] == done["versions"] else {}
    files = options.files or (SAMPLE if options.sample else found())
    waiting = [file for file in files if options.files or file not in done["files"]]
    for file, row in keras_files.run_all(waiting, options.jobs, time.monotonic() + 60 * options.minutes):
        done["files"][file] = row
        counts = ", ".join(f"{row[count]} {count}" for count in keras_files.COUNTS if row[count])
        print(f"{file}: {counts}, {row['seconds']:.0f} s", flush=True)
        for kind, words in row["told"]:
            if kind != "plain":
                print(f"  {kind}: {words}", flush=True)
        if not options.sample:
            done["files"] = dict(sorted(done["files"].items()))
            RESULTS.write_text(json.dumps(done, indent=1) + "\n")
    print("", *table(done), sep="\n")
    rows = [done["files"][file] for file in files if file in done["files"]]
    bad = sum(row["mismatches"] + row["crashes"] for row in rows)
    return 1 if bad or len(rows) < len(files) or not sum(row["replays"] for row in rows) else 0


def found():
    """List the test files of the installed Keras, the largest first."""
    import keras.src

    source = pathlib.Path(keras.src.__file__).parent
    files = [path for area in AREAS for path in (source / area).rglob("*_test.py")]
    return [str(path.relative_to(source)) for path in sorted(files, key=lambda p: (-p.stat().st_size, p))]


def _area(file):
    return file.partition("/")[0]


def versions():
    return {name: importlib.metadata.version(name) for name in ("tensorflow", "keras")}


def table(done):
    """Yield lines of Markdown: a row for each area, and why layers were kept or models not enabled."""
    yield "| area | files | " + " | ".join(COLUMNS.values()) + " |"
    yield "| --- | --- |" + " --- |" * len(COLUMNS)
    areas = {area: [row for file, row in done["files"].items() if _area(file) == area] for area in AREAS}
    areas = {area: rows for area, rows in areas.items() if rows}
    areas["all"] = list(itertools.chain(*areas.values()))
    for area, rows in areas.items():
        files = f"{len(rows)} of {done['found'].get(area, sum(done['found'].values()))}"
        counts = [f"{sum(row[count] for row in rows):,}" for count in COLUMNS]
        yield f"| {area} | {files} | " + " | ".join(counts) + " |"
    for what, key in (("Kept with a warning", "kept_by_reason"), ("Not enabled", "not_enabled")):
        reasons = collections.Counter()
        for row in done["files"].values():
            reasons.update(row[key])
        if reasons:
            yield f"\n{what}, by reason:\n"
            yield from (f"- {n:,}: {reason}" for reason, n in reasons.most_common())


if __name__ == "__main__":
    sys.exit(main())
