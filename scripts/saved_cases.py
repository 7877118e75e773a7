"""Measure cases in a process each, and save and print what was found: what several scripts do with their own cases."""

import argparse
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # else TensorFlow counts no memory on some CPUs


def main(script, doc, names, results, measure, row, table):
    """Run a script from the shell.

    Args:
        script: Its file.
        doc: What its help says.
        names: Those of its cases.
        results: The file of the saved results, a dictionary by name.
        measure: Gives the results of a case.
        row: A line for a case, given its name and results.
        table: All that is printed of the saved results.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="network", help="default: all")
    parser.add_argument("--table", action="store_true", help="print the saved results and measure nothing")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case)))
        return
    if unknown := set(arguments.networks) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from: {', '.join(names)}")
    saved = json.loads(results.read_text()) if results.exists() else {}
    if not arguments.table:
        for name in arguments.networks or names:
            command = [sys.executable, script, "--case", name]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            saved[name] = json.loads(run.stdout.splitlines()[-1])
            results.write_text(json.dumps(saved, indent=1) + "\n")
            print(row(name, saved[name]), flush=True)
    print(table(saved))


def timed(step, *arguments):
    """Seconds of a step, and the allocator's peak above what is there before it."""
    import tensorflow as tf

    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    begin = time.perf_counter()
    step(*arguments)
    spent = time.perf_counter() - begin
    return spent, tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
