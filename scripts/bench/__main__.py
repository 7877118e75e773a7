"""Tables of tfgc's figures next to those that others published, and next to other tools.

    python scripts/bench                             # list the tables, and what each takes
    python scripts/bench ogc --predict               # plan and predict, at the published batches
    python scripts/bench ogc --networks vgg11        # measure, at a part of the batches
    python scripts/bench ogc --table                 # print what is saved

Results are saved in bench-NAME.json (bench-NAME-predicted.json) in the current folder after each network, and a run
goes on where an earlier one ended. Networks that are named run again. Other people's figures come from other machines,
mostly GPUs: compare shares and multiples, never bytes and seconds. A cell is the share of the plain step's peak above
weights, and the multiple of its time; figures behind ~ are predictions for the step in tf.function, and count work.
"""

import argparse
import json
import os
import pathlib
import sys
import textwrap

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # else TensorFlow counts no memory on some CPUs


def main():
    from tables import TABLES

    parser = argparse.ArgumentParser(
        prog="python scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"list, or of {', '.join(TABLES)}")
    parser.add_argument("--networks", nargs="+", default=[], help="only these")
    parser.add_argument("--predict", action="store_true", help="plan and predict, and train nothing")
    parser.add_argument("--scale", type=float, help="part of each published batch (default: as listed; 1 to predict)")
    parser.add_argument("--steps", type=int, default=3, help="counted steps of a case (default: 3)")
    parser.add_argument("--table", action="store_true", help="print what is saved, and run nothing")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in (*TABLES, "list")]:
        parser.error(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}")
    if not given.names or "list" in given.names:
        print("\n".join(listed(TABLES)))
        return
    for name in given.names:
        table = TABLES[name]
        known = [row.network for row in table.rows()]
        if unknown := set(given.networks) - set(known):
            parser.error(f"{name} has no network {unknown.pop()!r}; it has {', '.join(known)}")
        path = pathlib.Path(f"bench-{name}{'-predicted' if given.predict else ''}.json")
        saved = json.loads(path.read_text()) if path.exists() else {}
        if not given.table:
            run(table, given, saved, path)
        print(f"## {name}\n\n{table.about}\n")
        print("\n".join(table.lines(saved)) if saved else f"Nothing is saved in {path}.")


def listed(tables):
    """What there is, what it shows and what it takes, in lines."""
    for name, table in tables.items():
        yield name
        takes = f"Takes: {table.takes}; 2 CPU cores, no GPU. Packages besides tfgc: {table.packages or 'none'}."
        for words in (table.about, takes):
            yield textwrap.fill(words, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    yield f"\nRun one: python scripts/bench {next(iter(tables))} --predict; more with -h."


def run(table, given, saved, path):
    """Measure or predict the rows that are missing, or that are named, and save each at once."""
    scale = given.scale or (1 if given.predict else table.scale)
    for row in table.rows():
        if row.network in given.networks if given.networks else row.network not in saved:
            print(f"{row.network} ...", file=sys.stderr, flush=True)
            batch = max(1, round(row.batch * scale))
            found = table.measure(row, batch, given.steps, given.predict)
            saved[row.network] = found
            path.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
