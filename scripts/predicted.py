"""Compare predicted with measured peaks of whole training steps.

Plans each network in several ways and runs each plan in its own process: the step in `tf.function` (graph), or called
from Python with compiled segments (eager). The measured peak is the allocator's, above what is resident between steps;
the median of the counted steps. The predicted peak is that of `tfgc.estimate`. Run nothing else at the same time; this
takes about half an hour on 2 cores.

    python scripts/predicted.py                  # measure networks that have no results yet
    python scripts/predicted.py resnet50         # measure one network again
    python scripts/predicted.py --table          # predict again, measure nothing
"""

import json
import statistics
import sys

import keras
import saved_cases
import tensorflow as tf

import tfgc
from tfgc import zoo
from tfgc._measure import compare
from tfgc._records.job import Case
from tfgc._tracing import keras_graph
from tfgc._units import format_bytes

RESULTS = saved_cases.RESULTS / "predicted.json"
NETWORKS = {
    "resnet50": 16,
    "resnet152": 8,
    "densenet121": 8,
    "inceptionv3": 8,
    "nasnetmobile": 16,
    "efficientnetb0": 16,
    "mobilenetv2": 16,
    "convnexttiny": 8,
    "unet": 4,
    "transformer_encoder": 8,
    # Wide enough for all tensors of a step to be counted: TensorFlow's CPU allocator does not count small ones.
    "bidirectional_lstm(2, 128, 64)": 640,
    "vgg16": 8,
}
PLANS = {
    "keep_all": ({"strategy": "keep_all"}, ("graph",)),
    "optimal": ({"strategy": "optimal"}, ("graph", "compiled")),
    "budget": ({"budget": "75%", "optimizer": "sgd"}, ("graph",)),
}
STEPS = 3


def main():
    arguments = saved_cases.arguments(__doc__, NETWORKS, {})
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, batch in NETWORKS.items():
        wanted = name in arguments.networks if arguments.networks else name not in results
        if wanted and not arguments.table:
            results[name] = measured(name, batch)
            RESULTS.write_text(json.dumps(results) + "\n")
    print_table(results)


def measured(name, batch):
    """Measure every plan of one network, and keep the plans so that they can be predicted again."""
    model = built(name)
    cases = []
    for label, (options, modes) in PLANS.items():
        plan = tfgc.plan(model, batch, **options)
        for mode in modes:
            case = Case(name, (name, None), label, mode, batch, plan=plan.to_json(), steps=STEPS)
            record = compare.run(case)
            figures = format_bytes(record.peak_bytes) if record.status == "ok" else record.detail
            print(f"{name}: {record.name}: {record.status} {figures}", file=sys.stderr, flush=True)
            cases.append({"plan": label, "mode": mode, "pieces": pieces(plan.segments, 0), "status": record.status})
            cases[-1] |= {"peak": record.peak_bytes, "largest": record.peak_bytes_max, "seconds": record.step_seconds}
    return cases


def built(name):
    """Build the network, with layers named as in a fresh process."""
    keras.utils.clear_session()
    return zoo.build(name)


def pieces(segments, start):
    """Return a plan as ranges of the graph's order, in few bytes."""
    found = []
    for segment in segments:
        end = start + len(segment.nodes)
        found.append((start, end, segment.mode if segment.inner is None else pieces(segment.inner.segments, start)))
        start = end
    return found


def print_table(results):
    """Print a row for each case, then how far predictions are off."""
    print("| network, batch | plan | mode | measured (largest) | predicted | off | buffers alone |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    off = {"graph": [], "compiled": []}
    for name, cases in results.items():
        model = built(name)
        graph = keras_graph.read(model)
        for case in cases:
            if case["status"] != "ok":
                print(f"| {name}, {NETWORKS[name]} | {case['plan']} | {case['mode']} | {case['status']} | | | |")
                continue
            plan = tfgc.Plan.from_pieces(graph, case["pieces"], strategy=case["plan"])
            found = tfgc.estimate(model, NETWORKS[name], plan, mode=case["mode"], optimizer="sgd", loss=squared_error)
            predicted = found.allocated_bytes - found.fixed_bytes
            miss = predicted / case["peak"] - 1
            off[case["mode"]].append(abs(miss))
            print(
                f"| {name}, {NETWORKS[name]} | {case['plan']} | {case['mode']} | {format_bytes(case['peak'])} "
                f"({format_bytes(case['largest'])}) | {format_bytes(predicted)} | {miss:+.1%} "
                f"| {format_bytes(found.peak_bytes - found.fixed_bytes)} |",
                flush=True,
            )
    for mode, misses in off.items():
        if misses:
            within = sum(miss <= 0.1 for miss in misses)
            print(
                f"\n{mode}: median {statistics.median(misses):.1%} off, largest {max(misses):.1%}; "
                f"{within} of {len(misses)} within 10 %."
            )


def squared_error(target, predicted):
    """The loss of the measured steps."""
    return tf.reduce_mean(tf.square(predicted - target))


if __name__ == "__main__":
    main()
