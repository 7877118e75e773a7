"""Draw what the threads of TensorFlow do during a plain and a recomputed training step, and say where time goes.

One step of each in `tf.function`, by TensorFlow's profiler, after a warm-up. An operation may use several cores, so
that a thread that waits is no idle core: the cores in use are those of the process.

    python scripts/timeline.py                            # ResNet50 at batch 8, images of 128 x 128
    python scripts/timeline.py densenet121 -o steps.png
"""

import argparse
import collections
import pathlib
import resource
import time

import fit_budgets

KINDS = {"first run": "#0069a8", "replay": "#b84a00", "gradients": "#8a94a0"}
PICTURE = pathlib.Path(__file__).parent.parent / "docs" / "images" / "timeline-of-a-step.png"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", default="resnet50", choices=fit_budgets.FUNCTIONAL)
    parser.add_argument("-o", "--output", default=PICTURE, type=pathlib.Path)
    arguments = parser.parse_args()
    import overhead
    import tensorflow as tf

    import tfgc

    model, *batch = fit_budgets.built(arguments.network)
    x, y = map(tf.convert_to_tensor, batch)
    plan = tfgc.plan(model, len(x), strategy="optimal")
    profiles = {}
    for case, given in (("plain", None), ("optimal", plan)):
        profiles[case] = profile(overhead.training_step(arguments.network, given, x, y))
        print(f"{case}: {described(*profiles[case])}\n")
    draw({case: runs for case, (runs, _, _) in profiles.items()}, arguments.output)


def profile(step):
    """What ran in one step, its seconds, and how many cores were in use."""
    from tfgc._framework import profiler

    for _ in range(3):
        step()
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    step()
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    cores = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / seconds
    return profiler.operations_run(step), seconds, cores


def kind(run):
    if "gradient_tape" in run.name or "Backprop" in run.kind or run.kind.endswith("Grad"):
        return "gradients"
    return "replay" if run.name.startswith("again/") else "first run"


def described(runs, seconds, cores):
    """Where the time of a step goes."""
    from tfgc._framework import profiler

    shared = profiler.shared(runs)
    types = {run.name: (kind(run), run.kind) for run in runs}
    spent, whole = collections.Counter(), collections.Counter()
    for name, share in shared.items():
        spent[types[name]] += share
        whole[types[name][0]] += share
    last, idle = min(run.begin for run in runs), 0
    for run in sorted(runs, key=lambda run: run.begin):
        idle += max(0, run.begin - last)
        last = max(last, run.end)
    lines = [f"{seconds:.2f} s, {cores:.2f} cores in use, {idle * 1e-12:.3f} s in which no operation runs"]
    lines += [f"  {name}: {count:.2f} s" for name, count in whole.most_common()]
    lines += [f"    {what} {name}: {count:.3f} s" for (what, name), count in spent.most_common(12)]
    return "\n".join(lines)


def draw(profiles, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(profiles), figsize=(12, 4), sharex=True, layout="constrained")
    for panel, (case, runs) in zip(panels, profiles.items()):
        start = min(run.begin for run in runs)
        busy = collections.Counter()
        for run in runs:
            busy[run.lane] += run.end - run.begin
        lanes = [lane for lane, _ in busy.most_common(2)]
        for row, lane in enumerate(lanes):
            for name, colour in KINDS.items():
                bars = [
                    (1e-12 * (r.begin - start), 1e-12 * (r.end - r.begin))
                    for r in runs
                    if r.lane == lane and kind(r) == name
                ]
                panel.broken_barh(bars, (row - 0.4, 0.8), color=colour, label=name if row == 0 else None)
        panel.set_yticks(range(len(lanes)), [f"thread {row + 1}" for row in range(len(lanes))])
        panel.set_title(case, loc="left")
    panels[0].legend(loc="upper right", ncols=len(KINDS))
    panels[-1].set_xlabel("seconds")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
