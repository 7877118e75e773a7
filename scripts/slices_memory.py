"""The peak of VGG16's step in slices of the batch, one process a case, without times.

The ways are those of `slices.py`, which measures times as well; peaks are those of TensorFlow's allocator above what is
there between steps, in the second step. Activations, and the step of a batch four times as
large, are predicted.

    python scripts/slices_memory.py                  # all cases
    python scripts/slices_memory.py vgg16-plain      # this one
    python scripts/slices_memory.py --table          # print the saved results

Results are saved in scripts/results/slices-memory.json.
"""

import saved_cases
import slices

NAME = "vgg16"
WAYS = [way for way in slices.WAYS if way != "eager"]
CASES = [f"{NAME}-{way}" for way in WAYS]
LARGER = 4
RESULTS = saved_cases.RESULTS / "slices-memory.json"
HEAD = (
    f"| network, batch | activations, predicted | with `slices={slices.SLICES}` | whole step | "
    f"`slices={slices.SLICES}` | "
    f"Keras, `gradient_accumulation_steps={slices.SLICES}` |"
)


def table(saved):
    """The saved results in Markdown."""
    plain, sliced = (saved.get(f"{NAME}-{way}") for way in ("plain", "segments"))
    lines = []
    for batch in plain["predicted"] if plain and sliced else ():
        one, other = plain["predicted"][batch], sliced["predicted"][batch]
        start = (
            f"| {NAME}, {batch} | {one['activations'] / 1e6:.0f} MB | {other['activations'] / one['activations']:.0%}"
        )
        measured = int(batch) == slices.NETWORKS[NAME][0]
        base = plain["peak"] if measured else one["step"]
        steps = [f"{base / 1e6:.0f} MB" + ("" if measured else ", predicted")]
        for way in WAYS[1:]:
            case = saved.get(f"{NAME}-{way}", {"predicted": {}})
            if measured and "peak" in case:
                steps.append(f"{case['peak'] / base:.0%}")
            elif not measured and batch in case["predicted"]:
                steps.append(f"{case['predicted'][batch]['step'] / base:.0%}, predicted")
            else:
                steps.append("not measured")
        lines.append(f"{start}, work x {1 + other['overhead']:.2f} | {' | '.join(steps)} |")
    return "\n".join([HEAD, "|" + " --- |" * 6, *lines])


def row(name, case):
    """A line for a case."""
    return f"{name}: {case['peak'] / 1e6:.0f} MB"


def measure(case):
    """The peak of a step, and what is predicted for plans that are known to the simulator."""
    import tfgc

    name, way = case.split("-")
    batch, predicted = slices.NETWORKS[name][0], {}
    if way in ("plain", "segments"):
        model, loss, _, _ = slices.built(name)
        for size in (batch, LARGER * batch):
            plan = slices.plan_of(model, size, way)
            found = tfgc.estimate(model, size, plan, optimizer="sgd", loss=loss)
            predicted[str(size)] = {
                "activations": found.activation_bytes,
                "step": found.needed_bytes - found.fixed_bytes,
                "overhead": found.overhead,
            }
    step = slices.step_of(name, way)
    step()
    return {"peak": saved_cases.timed(step)[1], "predicted": predicted}


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, CASES, RESULTS, measure, row, table)
