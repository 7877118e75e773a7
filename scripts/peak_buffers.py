"""Print which buffers are in memory at the peak of a training step, by the operations that made them.

TensorFlow's profiler notes each buffer that the allocator hands out and takes back. Some steps are profiled, and the
one of the highest peak is printed: what each buffer takes, what of it was asked for (chunks are handed out whole), its
shape and its operation. Weights, slots and the batch are there before; of them only new values are among these.

    python scripts/peak_buffers.py resnet50               # the plain step
    python scripts/peak_buffers.py resnet50 --budget 50%  # by the plan for a budget
    python scripts/peak_buffers.py gpt2 --least 100       # what takes 100 kB or more; 1,000 otherwise
"""

import argparse
import collections

import fit_budgets

STEPS = 9
ALLOCATED, FREED = "MemoryAllocation", "MemoryDeallocation"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*fit_budgets.FUNCTIONAL, *fit_budgets.OUTER, *fit_budgets.HUB)
    parser.add_argument("network", choices=names, metavar="network", help=f"of {', '.join(names)}")
    parser.add_argument("--budget", help="of tfgc.enable; default: the plain step")
    parser.add_argument("--least", type=int, default=1000, metavar="KB", help="smaller buffers are added up")
    arguments = parser.parse_args()
    peaks = map(at_peak, profiled(arguments.network, arguments.budget))
    print("\n".join(lines(*max(peaks, key=lambda peak: total(peak[0]) - peak[1]), arguments.least * 1000)))


def profiled(network, budget):
    """The allocator's events in each of some steps."""
    import tensorflow as tf

    import tfgc
    from tfgc._framework import profiler

    model, x, y = fit_budgets.built(network)
    x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
    if budget is not None:
        tfgc.enable(model, budget=budget)
    for _ in range(2):
        model.train_on_batch(x, y)
    return [list(events(profiler.planes(lambda: model.train_on_batch(x, y)))) for _ in range(STEPS)]


def events(planes):
    """What was handed out and taken back, as pairs of an event's name and what is known of its buffer, in order."""
    found = []
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name in (ALLOCATED, FREED):
                    buffer = {plane.stat_metadata[stat.metadata_id].name: value(plane, stat) for stat in event.stats}
                    found.append((line.timestamp_ns * 1000 + event.offset_ps, name, buffer))
    return [(name, buffer) for _, name, buffer in sorted(found, key=lambda event: event[0])]


def value(plane, stat):
    kind = stat.WhichOneof("value")
    return plane.stat_metadata[stat.ref_value].name if kind == "ref_value" else getattr(stat, kind)


def at_peak(events):
    """The buffers that are in memory when all take most, and the bytes that were given back by then of those before."""
    held, most = {}, ({}, 0)
    size = peak = returned = 0
    for name, buffer in events:
        if name == ALLOCATED:
            held[buffer["addr"]] = buffer
            size += buffer["allocation_bytes"]
        else:
            size -= buffer["allocation_bytes"]
            if held.pop(buffer["addr"], None) is None:
                returned += buffer["allocation_bytes"]
        if size > peak:
            peak, most = size, (dict(held), returned)
    return list(most[0].values()), most[1]


def total(buffers):
    return sum(buffer["allocation_bytes"] for buffer in buffers)


def lines(buffers, returned, least):
    """Lines of a table, the largest buffers first."""
    asked = sum(buffer["requested_bytes"] for buffer in buffers)
    yield f"Peak {(total(buffers) - returned) / 1e6:.1f} MB above what was there before"
    yield f"{total(buffers) / 1e6:.1f} MB, {asked / 1e6:.1f} MB of it asked for, in {len(buffers)} buffers"
    yield f"{returned / 1e6:.1f} MB given back of what was there before: weights with a new value have another buffer"
    groups = collections.Counter(
        (buffer["allocation_bytes"], buffer["requested_bytes"], buffer["shape"], buffer["tf_op"])
        for buffer in buffers
        if buffer["allocation_bytes"] >= least
    )
    for (size, asked, shape, operation), count in sorted(groups.items(), reverse=True):
        times = f"{count} x " if count > 1 else ""
        yield f"{times}{size / 1e6:.2f} MB ({asked / 1e6:.2f}) {shape} {operation}"
    rest = [buffer for buffer in buffers if buffer["allocation_bytes"] < least]
    yield f"{total(rest) / 1e6:.2f} MB in {len(rest)} smaller ones"


if __name__ == "__main__":
    main()
