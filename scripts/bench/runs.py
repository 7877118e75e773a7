"""Plan and measure the cases of one network, each in a process of its own, by tfgc's public functions."""

import concurrent.futures
import multiprocessing
import pathlib
import tempfile

# What a budget is given as where the plan of least peak is wanted: nothing fits, and the error names the least.
_NOTHING = 1000


def plan_cases(network, image_size, batch_size, asked):
    """Predict the plain step and plan each case, in a process of its own.

    Args:
        network: As `tfgc.zoo.build` takes it.
        image_size: Height and width of the images, or None for the network's own.
        batch_size: Samples in a batch.
        asked: By the name of a case the `strategy` and its options, and the `share` of the plain step's memory above
            weights that the plan may need: None without a budget, 0 for the least.

    Returns:
        By name, `plain` first, what is predicted (`share` of the plain peak above weights, `times` its work, `bytes` of
        the whole step, those of the weights `fixed`, of `host` memory), and the `plan` as JSON; or its `error`.
    """
    return in_process(_planned, network, image_size, batch_size, asked)


def _planned(network, image_size, batch_size, asked):
    import tfgc

    model = tfgc.zoo.build(network, image_size)
    plain = tfgc.estimate(model, batch_size, optimizer="sgd")
    found = {"plain": _figures(plain, plain)}
    for name, how in asked.items():
        options, share = dict(how), how.get("share")
        options.pop("share", None)
        try:
            if share is not None:
                budget = plain.fixed_bytes + share * (plain.needed_bytes - plain.fixed_bytes)
                options |= {"optimizer": "sgd", "budget": int(budget) if share else _NOTHING}
            try:
                plan = tfgc.plan(model, batch_size, **options)
            except tfgc.InfeasibleBudgetError as error:
                plan = tfgc.plan(model, batch_size, **{**options, "budget": error.least})
            step = tfgc.estimate(model, batch_size, plan, optimizer="sgd")
            found[name] = _figures(step, plain) | {"segments": len(plan.segments), "plan": plan.to_json()}
        except tfgc.TfgcError as error:
            found[name] = {"error": str(error)}
    return found


def _figures(step, plain):
    above = step.needed_bytes - step.fixed_bytes
    return {
        "share": above / (plain.needed_bytes - plain.fixed_bytes), "times": 1 + step.overhead,
        "bytes": step.needed_bytes, "fixed": step.fixed_bytes, "host": step.host_bytes,
    }  # fmt: skip


def measure_cases(network, image_size, batch_size, plans, modes, steps):
    """Train plainly and by each plan in each mode; by name, such as `optimal-graph`, the figures of a step.

    These are `peak` bytes above what is `held` between steps, and `seconds`; or another `status` than ok.
    """
    import tfgc

    with tempfile.TemporaryDirectory() as folder:
        for name, plan in plans.items():
            (pathlib.Path(folder) / name).write_text(plan)
        paths = [str(pathlib.Path(folder) / name) for name in plans]
        found = tfgc.compare(network, batch_size, plans=paths, image_size=image_size, modes=modes, steps=steps)
    return {
        record.name: {
            "status": record.status, "peak": record.peak_bytes, "seconds": record.step_seconds,
            "held": record.resident_bytes,
        }
        for record in found
    }  # fmt: skip


def in_process(function, *arguments):
    """The result of a function of a module here in a new process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(function, *arguments).result()
