"""Render plans: one in short, and the front of them as a table and a picture. No TensorFlow."""

import dataclasses

from tfgc._records.table import TextTable
from tfgc._report import comparison
from tfgc._units import format_bytes

HEADS = ("plan", "peak", "allocated", "activations", "cut-off", "overhead", "segments", "nested")
CHOICE_HEADS = ("budget", "bytes", *HEADS[1:])


def facts(network, plan, step, plain):
    """What is to be told of a plan: its outlook, and the whole step predicted, beside the plain one."""
    return {
        "network": network,
        "batch_size": plan.batch_size,
        "strategy": plan.strategy,
        "options": plan.options,
        "segments": len(plan.segments),
        "recomputed": sum(segment.mode == "recompute" for segment in plan.segments),
        "nested": plan.is_nested,
        **dataclasses.asdict(plan.outlook),
        "cut_off": plan.outlook.cut_off,
        "gap": plan.outlook.gap,
        "step_bytes": step.peak_bytes,
        "plain_step_bytes": plain.peak_bytes,
        "fixed_bytes": step.fixed_bytes,
        "allocated_bytes": step.allocated_bytes,
    }


def summary(facts):
    """A few lines about one plan, from its `facts`."""
    size = lambda key: format_bytes(facts[key])
    count, nested = facts["segments"], ", nested" if facts["nested"] else ""
    left_out = "weights and slots" if facts["whole_step"] else "weights, their gradients and slots"
    seconds = "seconds" if facts["unit"] == "s" else "flops"
    return [
        f"{facts['network']}, batch {facts['batch_size']}: {facts['strategy']}, {count} segment{'s' * (count > 1)}, "
        f"{facts['recomputed']} recomputed{nested}",
        f"  peak        {size('peak_bytes')} of {size('plain_bytes')}, cut-off {facts['cut_off']:.1%} "
        f"({left_out} left out)",
        f"  floor       {size('floor_bytes')}, set by {facts['floor_node']}; this plan is {facts['gap']:.1%} above",
        f"  overhead    {facts['overhead']:.1%} more work, in {seconds}; no plan of this peak has less than "
        f"{facts['least_overhead']:.1%}",
        f"  whole step  {size('step_bytes')} with weights and slots, {size('allocated_bytes')} in the allocator's "
        f"chunks; plain {size('plain_step_bytes')}",
    ]


def rows(front):
    """The cells of the front's table, as text, by rising peak: a list of rows."""
    chosen = {}
    for choice in front.choices:
        chosen.setdefault(choice.point, []).append(choice.budget)
    return [
        [
            " ".join([point.name, *(f"<- {budget}" for budget in chosen.get(point, ()))]).strip(),
            format_bytes(point.peak_bytes),
            format_bytes(point.allocated_bytes),
            format_bytes(point.activation_bytes),
            f"{point.cut_off * 100:.1f} %",
            f"{point.overhead * 100:.1f} %",
            str(point.segments),
            "yes" if point.nested else "",
        ]
        for point in sorted([*front.points, *front.others], key=lambda p: (p.peak_bytes, -p.overhead))
    ]


def table(front):
    """The table of the front for a terminal, a row a plan."""
    return TextTable(_title(front), HEADS, rows(front), _legend(front))


def budgets(front):
    """The table of what each budget buys, for a terminal."""
    least = {choice.least_bytes for choice in front.choices} - {None}
    caption = f"The least budget that works is {least.pop():,} bytes." if least else ""
    return TextTable("The plan of least overhead in each budget", CHOICE_HEADS, choice_rows(front), caption)


def choice_rows(front):
    """The cells of the table of budgets, as text: a list of rows."""
    cells = []
    for choice in front.choices:
        bought = ["infeasible", *[""] * (len(HEADS) - 2)]
        if choice.point is not None:
            bought = rows(dataclasses.replace(front, points=(choice.point,), others=(), choices=()))[0][1:]
        cells.append([choice.budget, format_bytes(choice.budget_bytes), *bought])
    return cells


def plot(front, path):
    """Draw overhead over peak into a PNG file.

    Raises:
        TfgcError: If matplotlib is not installed or `path` cannot be written.
    """
    matplotlib = comparison.require_matplotlib()
    figure = matplotlib.figure.Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    at = lambda point: (point.peak_bytes / 1e9, point.overhead * 100)
    axes.plot(*zip(*map(at, front.points)), "o-", markersize=4, linewidth=1.2, label="least overhead for each peak")
    for point in front.others:
        axes.plot(*at(point), "s", color="tab:gray")
    for point in [front.points[-1], *front.others]:
        axes.annotate(point.name, at(point), xytext=(0, 8), textcoords="offset points", ha="center", fontsize="small")
    for i, choice in enumerate(front.choices, start=1):
        bought = choice.point is not None
        label = None if bought else f"budget {choice.budget}: infeasible"
        axes.axvline(choice.budget_bytes / 1e9, color=f"C{i}", linestyle=":", linewidth=1, label=label)
        if bought:
            axes.plot(*at(choice.point), "*", color=f"C{i}", markersize=15, label=f"budget {choice.budget}")
    axes.axvline(
        front.floor_bytes / 1e9, color="black", linestyle="--", linewidth=1, label=f"floor: {front.floor_node}"
    )
    work = "time" if front.unit == "s" else "flops"
    axes.set(
        xlabel="peak of the whole step, weights included (GB)",
        ylabel=f"overhead (% of the plain step's {work})",
        title=_title(front),
    )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=min(axes.get_ylim()[0], 0))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    comparison.save(figure, path)


def _title(front):
    return f"{front.network}, batch {front.batch_size}"


def _legend(front):
    work = "seconds measured here" if front.unit == "s" else "floating-point operations"
    return (
        f"peak: most bytes at once in the whole step, {format_bytes(front.fixed_bytes)} of weights and optimizer slots "
        "included. allocated: what TensorFlow's allocator should take for it, which is what a budget is held against. "
        "activations: their own peak, gradients of weights left out. cut-off: the part of the plain step's "
        f"peak above weights and slots that is saved. overhead: work that comes on top, in {work}. nested: a replay "
        f"is split again. No plan goes below {format_bytes(front.floor_bytes)}, set by {front.floor_node}."
    )
