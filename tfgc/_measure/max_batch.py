"""The largest batch that fits in a budget: predicted, then measured around the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfgc import _progress
from tfgc import strategies as known_strategies
from tfgc._core.modes import check_mode
from tfgc._core.plan import Plan
from tfgc._errors import InfeasibleBudgetError, OptionError, TfgcError, check_int
from tfgc._measure import batch_search, case_choice, compare, examples, process
from tfgc._progress import Progress
from tfgc._records.batch_limit import MaxBatch, Reach, step_bytes
from tfgc._records.job import Case, LargestBatch, MaxBatchJob, MaxBatchPrediction
from tfgc._units import PERCENT, bare_number, format_bytes, is_auto, parse_bytes
from tfgc.strategies import Strategy

if TYPE_CHECKING:
    import keras


def max_batch(
    build: Callable[..., keras.Model] | str,
    budget: int | str,
    *,
    strategy: Strategy | None = None,
    image_size: int | None = None,
    input_shapes: Mapping[str, tuple[int | None, ...]] | None = None,
    example: Any = None,
    optimizer: keras.Optimizer | str | None = None,
    confirm: bool = True,
    steps: int = 3,
    memory_limit: int | None = None,
    mode: str = "graph",
    verbose: int = 1,
    **options: Any,
) -> MaxBatch:
    """Find the largest batch whose training step fits in a budget, with and without recomputation.

    Predicted first, in a child process. Then child processes run real steps (in `tf.function`, squared error, seeded
    noise) at the predicted batch and around it, until one batch is measured to fit and one at most 2 % or one sample
    above it not to: two to four runs each for plain training and the strategy where the prediction is good, at most
    five, and up to eight where some run out of memory.

    What fits is the whole step as TensorFlow's allocator counts it: weights, gradients, optimizer slots and
    activations, as in `tfgc.plan`, and besides the batch itself, inputs and targets, which lie on the device
    meanwhile. So `tfgc.plan` meets the budget at a batch that is predicted.

    Args:
        build: Name of a network (see `tfgc.zoo`) or a function that builds a model.
        budget: Bytes: a number, "8GB", or "auto": 90 % of what is free now, as for `tfgc.plan`.
        strategy: A name from `tfgc.strategies.available()`, `name:n` for n segments, or a function. `keep_all` is
            plain training. Default: at each batch the plan that needs least, nested replays allowed. A functional
            model is planned by its layers.
        image_size: Height and width of images, for networks that take it.
        input_shapes: Mapping from input names to shapes without the batch, where the model leaves a dimension open.
        example: A batch for a subclassed model, as for `tfgc.compare`; its samples are repeated or left out.
        optimizer: A `keras.Optimizer` or its name. Default: the one that the model is compiled with, else Adam.
        confirm: Whether to measure; otherwise the prediction alone is the answer.
        steps: Counted steps of each run, after one that warms up; the largest of their peaks counts.
        memory_limit: Bytes of data that a child process may allocate. Default: what the machine has.
        mode: How the step runs: `graph`, or `xla`, as `fit` compiles it on a GPU. Runs that confirm are then also
            compiled, on what device there is: for another one leave them out.
        verbose: 1: show progress on standard error, a bar in a terminal, else a line for each run. 0: nothing.
        **options: Options of the strategy, such as `segments=8`.

    Returns:
        A `tfgc.MaxBatch`: `batch_size` (also its `int()`), `plain_batch_size`, the `plan` to enable, what was
        predicted and measured. No batch above 2**20 is looked at.

    Raises:
        InfeasibleBudgetError: If not even one sample fits by the strategy.
        OptionError: For arguments that cannot be, and models that are declared for one batch size.
        TfgcError: If the model cannot be built, planned or run.

    Example:
        >>> import keras, tfgc
        >>> def mlp():
        ...     return keras.Sequential([keras.Input((64,)), *(keras.layers.Dense(64, "tanh") for _ in range(8))])
        >>> found = tfgc.max_batch(mlp, "8MB", confirm=False)
        >>> found.batch_size > 1.5 * found.plain_batch_size > 0, int(found) == found.predicted_batch_size
        (True, True)
    """
    shown = _progress.check_verbose(verbose)
    check_mode(mode, ("graph", "xla"), "the step runs in one tf.function")
    network = case_choice.name_of(build)
    steps = check_int("steps", steps)
    if memory_limit is not None:
        memory_limit = check_int("memory_limit", memory_limit)
    if image_size is not None:
        image_size = check_int("image_size", image_size)
    checked = _checked(budget)
    if example is not None:
        case_choice.refuse_with_example(strategy=strategy, input_shapes=input_shapes, **options)
        example = examples.portable(example)
    label, chosen = "least", None
    if strategy is None:
        known_strategies.check_options("budget", options, budget)
    else:
        label, chosen, options = case_choice.labelled(strategy, options, budget)
    job = MaxBatchJob(
        network, (build, image_size), checked, chosen, options, input_shapes, case_choice.serialized(optimizer),
        example, mode,
    )  # fmt: skip
    with _progress.bar(network, 1 + 2 * batch_search.RUNS * confirm, "runs at most", shown) as runs:
        runs.start(f"{network}: prediction")
        found: MaxBatchPrediction = process.ask(job)
        wanted = found.recomputed or found.plain
        runs.done(f"batch {wanted.batch_size}")
        if wanted.batch_size == 0:
            raise _infeasible(found, wanted.needed_bytes, wanted.node)

        def reached(name: str, way: LargestBatch) -> Reach:
            if not confirm:
                return Reach(name, way.batch_size, way.needed_bytes, way.batch_size)
            case = Case(
                network, job.build, name, mode, 0, plan=way.plan, input_shapes=job.input_shapes, steps=steps,
                memory_limit=memory_limit, optimizer=found.optimizer, example=example,
            )  # fmt: skip
            return _confirmed(way, case, found, runs)

        plain = reached("plain", found.plain)
        best = plain if found.recomputed is None else reached(label, found.recomputed)
    if best.batch_size == 0:
        raise _measured_infeasible(best, wanted, found)
    plan = None if found.recomputed is None else Plan.from_json(found.recomputed.plan or "")
    return MaxBatch(network, found.budget_bytes, found.fixed_bytes, best, plain, plan)


def _confirmed(way: LargestBatch, case: Case, found: MaxBatchPrediction, runs: Progress) -> Reach:
    """The `Reach` of a way of training that is measured as `case`, at the batches that are tried."""
    records = []

    def measure(batch: int) -> int | None:
        runs.start(f"{case.network}: {case.name} at batch {batch}")
        record = compare.run(dataclasses.replace(case, batch_size=batch))
        needed = step_bytes(record)
        runs.done(record.status if needed is None else format_bytes(needed))
        if record.status == "failed":
            raise TfgcError(f"{case.name} of {case.network!r} cannot be run at batch {batch}: {record.detail}")
        records.append(record)
        return needed

    batch, above, confirmed = batch_search.largest_fitting(
        measure, found.budget_bytes, max(1, way.batch_size), found.fixed_bytes, runs=True
    )
    return Reach(case.case, way.batch_size, way.needed_bytes, batch, above, confirmed, tuple(records))


def _checked(budget: int | str) -> int | str:
    """A budget as the child process gets it: bytes or `auto`."""
    if is_auto(budget):
        return "auto"
    bare = bare_number(budget)
    if str(budget).strip().endswith("%") or (bare is not None and 0 < bare <= PERCENT):
        raise OptionError(
            f"budget={budget!r}: must be bytes such as '8GB', or 'auto': a share of the plain step's peak depends on "
            "the batch, which is what tfgc searches for"
        )
    return parse_bytes(budget)


def _measured_infeasible(reach: Reach, way: LargestBatch, found: MaxBatchPrediction) -> TfgcError:
    """The error for a way that was predicted to fit, of which no batch was measured to."""
    least = step_bytes(reach.records[-1])
    if reach.above == 1 and least is not None:
        return _infeasible(found, least, way.node)
    return TfgcError(
        f"no batch was measured to fit in {found.budget_bytes:,} bytes, though one of {way.batch_size} should: "
        f"the least that was run, {reach.above}, " + ("ran out of memory" if least is None else f"took {least:,} bytes")
    )


def _infeasible(found: MaxBatchPrediction, least: int, node: str) -> InfeasibleBudgetError:
    also = f" at a batch of one sample (weights and optimizer slots alone are {found.fixed_bytes:,})"
    return InfeasibleBudgetError(found.budget_bytes, least, node, also, "a smaller input or network")
