"""Compare time and memory of `fit` and eager loops by a plan with plain Keras and other tools.

Runs one process per case for each network: plain `fit`; `fit` with tfgc's `optimal`, and with the fastest plan that
needs half of what the plain step needs above the weights, as timed on this machine; `keras.RematScope` in its full
mode; a model divided by hand into eight parts, all but the last under `tf.recompute_grad`; plain and enabled eager
loops. In `fit` the batch size is open, as where it is given arrays. The processes step in turn, one at a time, and
times are medians of the ratios to the plain step of the same round: machines change their pace by a fifth within a
minute. The last columns show how far the update of the first step is from that of plain `fit`: for the weights, and for
statistics and seeds. Results are saved in scripts/results/fit_speed.json. Run nothing else at the same time.

    python scripts/fit_speed.py               # what is not saved yet; two to five minutes a row on 2 cores
    python scripts/fit_speed.py resnet50:8    # one network, anew
    python scripts/fit_speed.py --table       # print the saved results
"""

import contextlib
import multiprocessing
import pathlib
import pickle
import statistics
import sys
import tempfile
import time

import saved_cases

from tfgc import _error_texts

RESULTS = saved_cases.RESULTS / "fit_speed.json"
NETWORKS = (
    "resnet50:8",
    "densenet121:8",
    "efficientnetb0:8",
    "unet:8",
    "transformer_encoder:8",
    "gpt(6, 256, 256, 5000):8",
    "resnet50:16",
    "densenet121:16",
    "efficientnetb0:16",
    "unet:16",
    "transformer_encoder:16",
    "gpt(6, 256, 256, 5000):16",
)
IMAGE_SIZES = {"unet": 64}  # pixels; others have their own
CASES = (
    "plain fit",
    "tfgc fit, optimal",
    "tfgc fit, half",
    "RematScope fit",
    "recompute_grad fit",
    "plain eager",
    "tfgc eager, optimal",
    "tfgc eager, half",
)
WARM_UP, STEPS = 2, 10
# Time over plain's: transformers, other networks, and plans for half of the activations.
TARGETS = {"transformer": 1.10, "other": 1.15, "half": 1.08}


def run(network):
    """Run every case of a network, each in its own process, their steps in turn."""
    ended, running, spawn = {}, {}, multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            running[case], theirs = spawn.Pipe()
            spawn.Process(target=report, args=(network, case, pathlib.Path(folder), theirs), daemon=True).start()
            theirs.close()
            step(WARM_UP, {case: running[case]}, ended)
        step(STEPS, running, ended)
        ended.update({case: answer(pipe) for case, pipe in running.items() if case not in ended})
    cases = {case: ended[case] for case in CASES}
    rounds = {case: found.pop("each", []) for case, found in cases.items()}
    for case, found in cases.items():
        shares = [seconds / plain for seconds, plain in zip(rounds[case], rounds[plain_of(case)])]
        found.update({"ratio": statistics.median(shares)} if shares else {})
        print(f"{network}: {case}: {found}", file=sys.stderr, flush=True)
    return cases


def step(count, pipes, ended):
    """Let each case take so many steps in turn; what one reports instead of a step is how it `ended`."""
    for _ in range(count):
        for case, pipe in pipes.items():
            if case not in ended:
                with contextlib.suppress(BrokenPipeError):
                    pipe.send("go on")
                found = answer(pipe)
                ended.update({} if found is None else {case: found})


def answer(pipe):
    """What a process reports: None after a step, or its result."""
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return {"failed": "the process died"}


def report(network, case, folder, pipe):
    """Measure a case, and send what was found, in a process of its own."""
    try:
        pipe.send(measure(network, case, folder, pipe))
    except Exception as error:  # whatever fails is a row of the table
        pipe.send({"failed": _error_texts.one_line(error)[:300]})


def measure(network, case, folder, pipe):
    """Train for warm-up steps and some counted steps, each when told; compare the first update with that of plain."""
    import keras
    import numpy as np
    import tensorflow as tf
    from bench import peers

    name, batch_size = network.rsplit(":", 1)
    batch_size = int(batch_size)
    keras.utils.set_random_seed(0)
    model, plain = build(name, batch_size, case)
    random = np.random.default_rng(0)
    total = batch_size * (STEPS + WARM_UP)
    if is_transformer(name):
        x = random.integers(0, 5000, (total, *plain.input_shape[1:])).astype("int32")
    else:
        x = random.standard_normal((total, *plain.input_shape[1:]), dtype="float32")
    *positions, classes = plain.output_shape[1:]
    y = random.integers(0, classes, (total, *positions)).astype("int32")
    # Compiled segments are compared with a compiled plain step; plain eager code shows the rounding between the two.
    seconds, peaks, updates, reference = [], [], {}, folder / "plain.pickle"
    before = snapshot(plain)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
    resident = memory(tf, "current")

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            pipe.recv()
            tf.config.experimental.reset_memory_stats("CPU:0")
            self.begin = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            seconds.append(time.perf_counter() - self.begin)
            peaks.append(memory(tf, "peak") - resident)
            if not updates:
                updates.update({k: v - before[k] for k, v in snapshot(plain).items()})
                # The first steps run one process after the other, that of plain `fit` first.
                if not reference.exists():
                    reference.write_bytes(pickle.dumps(updates))
            pipe.send(None)

    if is_fit(case):
        model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[Clock()])
    else:
        loss, optimizer = loss_of(name), keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
        clock = Clock()
        for i, (images, labels) in enumerate(data):
            clock.on_train_batch_begin(i)
            with tf.GradientTape() as tape:
                value = loss(labels, model(images, training=True))
            gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            float(value)
            clock.on_train_batch_end(i)
    expected = pickle.loads(reference.read_bytes())
    weights = [v.path for v in plain.trainable_variables]
    states = [name for name in expected if name not in weights]
    return {
        "seconds": statistics.median(seconds[WARM_UP:]),
        "each": seconds[WARM_UP:],
        "first": seconds[0],
        "peak": int(statistics.median(peaks[WARM_UP:])),
        "weights": peers.difference(expected, updates, weights),
        "states": peers.difference(expected, updates, states) if states else 0.0,
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
    }


def build(name, batch_size, case):
    """Return the model to train, compiled if `fit` trains it, and the model that holds its variables by name."""
    import keras
    from bench import peers

    import tfgc
    from tfgc import zoo

    scope = keras.RematScope(mode="full") if case.startswith("RematScope") else contextlib.nullcontext()
    with scope:
        model = zoo.build(name, IMAGE_SIZES.get(name))
    if is_fit(case):
        compiled(model, name)
    if case.startswith("tfgc"):
        if case.endswith("half"):
            plain = tfgc.estimate(model, batch_size, optimizer="sgd")
            budget = (plain.fixed_bytes + plain.needed_bytes) // 2
            plan = tfgc.plan(model, batch_size, budget=budget, optimizer="sgd")
        else:
            plan = tfgc.plan(model, batch_size, strategy="optimal")
        tfgc.enable(model, plan)
    if not case.startswith("recompute_grad"):
        return model, model
    by_hand = peers.wrap_call("recompute_grad", model)

    class ByHand(keras.Model):
        def __init__(self):
            super().__init__()
            self.whole = model  # holds the variables

        def call(self, x, training=None):
            return by_hand(x, training=training)

    return compiled(ByHand(), name), model


def is_fit(case):
    """Whether `fit` trains the model, and not a loop of its own."""
    return case.endswith("fit") or " fit," in case


def compiled(model, name):
    """Return a model, compiled for `fit`."""
    import keras

    model.compile(keras.optimizers.SGD(0.01), loss_of(name))
    return model


def loss_of(name):
    """The loss that a network is trained with."""
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=is_transformer(name))


def is_transformer(name):
    """Whether a network reads tokens and gives logits."""
    return name.startswith(("transformer_encoder", "gpt"))


def snapshot(model):
    """Return every variable by name, seeds included, in one precision."""
    return {v.path: v.numpy().astype("float64") for v in model.variables}


def memory(tf, which):
    return tf.config.experimental.get_memory_info("CPU:0")[which]


def table(found):
    """All that is printed of the saved results."""
    return "\n".join([*summary(found), "", *rows(found)])


def row(network, cases):
    return "\n".join(rows({network: cases}))


def summary(found):
    """Yield a row for each network: time and activation peak of each case as shares of its plain case."""
    names = [case for case in CASES if not case.startswith("plain")]
    yield f"| network, batch | {' | '.join(names)} |"
    yield "| --- |" + " --- |" * len(names)
    for network, cases in found.items():
        cells = [" ".join(filter(None, ratios(cases, case))) for case in names]
        yield f"| {network.replace(':', ', ')} | {' | '.join(cells)} |"


def ratios(cases, case):
    """Return time over plain, peak over plain, and what is wrong with a case."""
    row = cases[case]
    plain = cases[plain_of(case)]
    if "failed" in row or "failed" in plain:
        return "fails" if "failed" in row else "plain fails", "", ""
    return f"x {row['ratio']:.2f},", f"{row['peak'] / plain['peak']:.0%}", wrong(cases, case)


def plain_of(case):
    """The case that another one is compared with."""
    return "plain eager" if "eager" in case else "plain fit"


def wrong(cases, case):
    """Name what differs in the first update by over 0.1 %, and by twice what plain eager code does from plain `fit`.

    ResNet50 amplifies roundings: its plain modes differ by 1.4 %, and so does what TensorFlow's arithmetic optimization
    makes of two graphs. Without that option plain and tfgc differ by 1e-7, and in float64 by 3e-14.
    """
    if case.startswith("plain"):
        return ""
    found = []
    for what, name in (("weights", "gradients"), ("states", "states")):
        spread = cases["plain eager"].get(what, 0.0)
        found += [] if cases[case][what] <= max(1e-3, 2 * spread) else [f"wrong {name}"]  # NaN is also wrong
    return ", ".join(found)


def rows(found):
    """Yield a row for each case, with its ratios to plain and whether it meets the target."""
    yield "| network, batch | case | time of a step | activation peak | first step | update: weights, states | target |"
    yield "| --- | --- | ---: | ---: | ---: | --- | --- |"
    for network, cases in found.items():
        for case, row in cases.items():
            name = network.replace(":", ", ")
            if "failed" in row:
                yield f"| {name} | {case} | fails: {row['failed'].replace('|', '/')} | | | | |"
                continue
            slower, share, told = ratios(cases, case)
            if "failed" in cases[plain_of(case)]:
                yield f"| {name} | {case} | {slower} | | | | |"
                continue
            met = ""
            if case.startswith("tfgc fit"):
                kind = "transformer" if is_transformer(network) else "other"
                most = TARGETS["half" if case.endswith("half") else kind]
                met = f"x {most:.2f}: {'met' if row['ratio'] <= most else 'missed'}"
            elif case.startswith("tfgc eager"):
                met = f"x 1: {'met' if row['ratio'] <= 1 else 'missed'}"
            spent, used = f"{row['seconds']:.3g} s, {slower[:-1]}", f"{row['peak'] / 1e6:,.0f} MB, {share}"
            update = f"{row['weights']:.1g}, {row['states']:.1g}" + (f": {told}" if told else "")
            yield f"| {name} | {case} | {spent} | {used} | {row['first']:.3g} s | {update} | {met} |"


if __name__ == "__main__":
    saved_cases.main(__file__, __doc__, NETWORKS, RESULTS, None, row, table, run, again=False)
