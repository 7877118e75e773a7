"""Steps as data: which operations a rewrite copies, the order in which they run, and the bytes that are alive.

All steps are written by hand, so that orders and bytes can be read off.
"""

import dataclasses

import pytest

from tfgc._pairs import rows
from tfgc._rewrite.liveness import peak, timeline
from tfgc._rewrite.order import ordered
from tfgc._rewrite.recompute import Cut, recomputed
from tfgc._rewrite.waits import waits
from tfgc._step.condensed import condensed
from tfgc._step.step import Op, Step

MB = 10**6


def chain(length, stateful=(), small=()):
    """A chain of forward operations f1 ... fn of 1 MB each, a loss, and their gradients gn ... g1 in one call.

    The gradient of each reads what the one before it made, and the gradient behind it.
    """
    ops = {0: Op("x", "Placeholder", sizes=(MB,), is_stateful=True)}
    for i in range(1, length + 1):
        size = 1000 if i in small else MB
        ops[i] = Op(f"f{i}", "MatMul", ((i - 1, 0),), sizes=(size,), is_stateful=i in stateful, work=10)
    loss = length + 1
    ops[loss] = Op("loss", "Mean", ((length, 0),), sizes=(4,))
    above = (loss, 0)
    for i in range(length, 0, -1):
        number = len(ops)
        ops[number] = Op(f"g{i}", "MatMul", ((i - 1, 0), above), sizes=(MB,), call=1, is_gradient=True)
        above = (number, 0)
    return Step(ops, tuple(ops), ((loss, 0), above), (True,))


def names(step):
    return [step.ops[i].name for i in step.order]


def number(step, name):
    return next(i for i, op in step.ops.items() if op.name == name)


def cut(step, *behind, **kwargs):
    return [Cut(number(step, name), **kwargs) for name in behind]


def run(step, cuts):
    return ordered(recomputed(step, cuts))


def short(name):
    """`f2'` for a copy of f2, and `f2''` for a copy of a copy."""
    return name.split("/")[-1] + "'" * name.count("again")


def test_a_replay_starts_when_a_gradient_needs_it():
    step = chain(6)
    made = run(step, cut(step, "f3"))
    assert [short(name) for name in names(made)] == [
        "x", "f1", "f2", "f3", "f4", "f5", "f6", "loss", "g6", "g5", "f1'", "f2'", "f3'", "g4", "g3", "g2", "g1",
    ]  # fmt: skip
    # All of f1 to f5 and f6; of the cut step f4 and f5 and a gradient, then f1' to f3' and a gradient.
    assert peak(step) == 6 * MB
    assert [count // MB for count in timeline(made)] == [0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 2, 3, 4, 5, 4, 3, 2]


def test_gradients_of_losses_of_many_layers_do_not_wait_for_those_of_later_layers():
    ops = {0: Op("x", "Placeholder", sizes=(MB,), is_stateful=True)}
    for i in range(1, 9):
        ops[i] = Op(f"f{i}", "MatMul", ((i - 1, 0),), sizes=(MB,))
        ops[10 + i] = Op(f"loss{i}", "Mean", ((i, 0),), sizes=(4,))
        ops[20 + i] = Op(f"g{i}", "MatMul", ((10 + i, 0), (i, 0)), sizes=(MB,), call=1, is_gradient=True)
    above = (28, 0)
    for i in range(8, 1, -1):
        ops[50 - 2 * i] = Op(f"b{i}", "MatMul", (above, (i - 1, 0)), sizes=(MB,), call=1, is_gradient=True)
        ops[51 - 2 * i] = Op(f"s{i}", "AddN", ((50 - 2 * i, 0), (19 + i, 0)), sizes=(MB,), call=1, is_gradient=True)
        above = (51 - 2 * i, 0)
    step = Step(ops, tuple(sorted(ops)), (above,), (True,))
    assert peak(step) == 16 * MB
    assert peak(ordered(step)) == 9 * MB
    assert peak(run(step, cut(step, "f3", "f6"))) == 6 * MB


def test_what_copies_read_of_earlier_segments_is_stored():
    step = chain(9)
    made = run(step, cut(step, "f3", "f6"))
    copied = [short(name) for name in names(made) if short(name).endswith("'")]
    assert copied == ["f4'", "f5'", "f6'", "f1'", "f2'"]  # f3 is read by f4'
    assert [made.ops[t[0]].name for t in made.ops[number(made, "again/1/1/f4")].inputs] == ["f3"]


@pytest.mark.parametrize("length", [2, 3, 7, 12])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_no_operation_runs_more_than_twice_and_the_step_needs_no_more_than_plain(length, every):
    step = chain(length)
    ends = range(every, length, every)
    made = run(step, cut(step, *(f"f{i}" for i in ends)))
    copied = sorted(short(op.name) for op in made.ops.values() if op.segment)
    last = max(ends, default=0)
    if every == 1:  # every other one is read by a copy, and stored
        assert copied == sorted(f"f{i}'" for i in range(last, 0, -2))
    else:  # the last segment before what is kept is read by no copy
        assert copied == sorted(f"f{i}'" for i in range(1, last + 1) if i not in ends[:-1])
    assert set(made.ops) >= set(step.ops)
    assert peak(made) <= peak(step)
    assert all(made.at[t[0]] < made.at[i] for i in made.order for t in made.ops[i].inputs)


def test_what_is_stateful_small_or_a_gradient_is_never_copied():
    step = chain(6, stateful=(2,), small=(4,))
    made = run(step, cut(step, "f5"))
    assert {short(op.name) for op in made.ops.values() if op.segment} == {"f1'", "f3'", "f5'"}


def test_a_segment_may_be_kept():
    step = chain(6)
    made = run(step, [*cut(step, "f2"), *cut(step, "f4", keep=True)])
    assert {short(op.name) for op in made.ops.values() if op.segment} == {"f1'", "f2'"}
    assert run(step, cut(step, "f5", keep=True)).ops == run(step, []).ops


def test_a_copied_segment_may_be_cut_again():
    step = chain(9)
    inside = tuple(cut(step, "f4"))
    flat, nested = run(step, cut(step, "f8")), run(step, [Cut(number(step, "f8"), inside=inside)])
    assert peak(nested) < peak(flat)
    order = [short(name) for name in names(nested)]
    assert order[order.index("g9") - 8 :] == [
        "f1'", "f2'", "f3'", "f4'", "f5'", "f6'", "f7'", "f8'", "g9", "g8", "g7", "g6", "f1''", "f2''", "f3''", "f4''",
        "g5", "g4", "g3", "g2", "g1",
    ]  # fmt: skip


def test_an_inner_cut_may_lie_behind_what_is_not_copied():
    step = chain(9, small=(4,))
    nested = run(step, [Cut(number(step, "f8"), inside=tuple(cut(step, "f4")))])
    assert [short(name) for name in names(nested) if "again" in name][-3:] == ["f1''", "f2''", "f3''"]


def test_a_function_ends_where_what_it_takes_would_hold_more_than_the_step_needs():
    step = run(chain(6), cut(chain(6), "f3"))
    late = [i for i in step.order if step.ops[i].call]
    parts = [*rows.split(step, [late])]
    assert [i for part in parts for i in part] == late
    # The first one takes f4 and f5, which end with g5 and g6: next to them f1', f2' and g5 are more than 4 of 5 MB.
    made = [[short(step.ops[i].name) for i in part] for part in parts]
    assert made == [["g6", "g5", "f1'"], ["f2'", "f3'", "g4"], ["g3"], ["g2", "g1"]]


def two_calls():
    """Two gradient calls of one forward pass, as of a persistent tape: each reads f1 to f4."""
    ops = {0: Op("x", "Placeholder", sizes=(MB,), is_stateful=True)}
    for i in range(1, 5):
        ops[i] = Op(f"f{i}", "MatMul", ((i - 1, 0),), sizes=(MB,))
    results = []
    for call in (1, 2):
        above = (4, 0)
        for i in range(4, 0, -1):
            ops[len(ops)] = Op(f"g{call}{i}", "MatMul", ((i - 1, 0), above), (), (MB,), call, True)
            above = (len(ops) - 1, 0)
        results.append(above)
    return Step(ops, tuple(ops), tuple(results), (True, True))


def test_each_call_has_copies_of_its_own():
    step = two_calls()
    made = run(step, cut(step, "f3"))
    calls = sorted((op.call, short(op.name)) for op in made.ops.values() if op.segment)
    assert [one for one in calls if one[1] in ("f1'", "f2'")] == [(1, "f1'"), (1, "f2'"), (2, "f1'"), (2, "f2'")]
    first = {t for i, op in made.ops.items() if op.call == 1 for t in op.inputs if made.ops[t[0]].segment}
    second = {t for i, op in made.ops.items() if op.call == 2 for t in op.inputs if made.ops[t[0]].segment}
    assert not first & second


def test_copies_wait_for_the_last_large_gradient_before_them():
    step = chain(6)
    made = run(step, cut(step, "f3"))
    found = waits(made)
    (first,) = [i for i, op in made.ops.items() if short(op.name) == "f1'"]
    assert "g5" in {made.ops[i].name for i in found[first]}
    assert all(made.at[j] < made.at[i] for i, before in found.items() for j in before)


def test_leaves_that_hold_a_buffer_are_waited_for():
    """The gradient of a weight reads what it frees: at the peak the next allocation on the way waits for it."""
    step = chain(4)
    ops = dict(step.ops)
    for i in range(4, 0, -1):
        above = number(step, f"g{i + 1}") if i < 4 else number(step, "loss")
        ops[len(ops)] = Op(f"w{i}", "MatMul", ((i - 1, 0), (above, 0)), sizes=(MB // 4,), call=1, is_gradient=True)
    made = ordered(Step(ops, tuple(ops), step.results, step.calls))
    later = [made.ops[i].name for i, before in waits(made).items() if any(made.ops[j].name == "w4" for j in before)]
    assert "g3" in later


def test_no_operation_runs_so_early_that_the_peak_grows():
    """The gradient of a mean follows from little: it could be there, for its sum, long before the other gradients."""

    def gradient(name, kind, *read, size=MB):
        return Op(name, kind, tuple((i, 0) for i in read), (), (size,), 1, True)

    step = Step(
        {
            **{i: op for i, op in chain(1).ops.items() if i <= 2},
            3: gradient("a", "MatMul", 1, 2),
            4: gradient("mean", "Sum", 3, size=4),
            5: gradient("b", "MatMul", 3, size=3 * MB),
            6: gradient("c", "MatMul", 5),
            7: gradient("d", "MatMul", 6),
            8: gradient("tile", "Tile", 4),
            9: gradient("sum", "AddN", 7, 8, 6),
        },
        tuple(range(10)),
        ((9, 0),),
        (True,),
    )
    edges = waits(step)
    for early in step.order:  # with all that must run before it at first
        first, stack = {early}, [early]
        while stack:
            i = stack.pop()
            new = {t[0] for t in step.ops[i].inputs} | edges.get(i, set())
            stack += new - first
            first |= new
        assert peak(
            dataclasses.replace(step, order=(*sorted(first), *(i for i in step.order if i not in first)))
        ) == peak(step)


def test_a_condensed_step_has_the_same_peak():
    step = chain(8, small=(3, 6))
    extra = {100 + i: Op(f"s{i}", "Shape", ((i, 0),), sizes=(8,)) for i in range(1, 5)}
    extra[105] = Op("one", "Const", sizes=(4,))
    extra[106] = Op("gathered", "IdentityN", ((105, 0), (4, 0)), sizes=(4, MB))
    reader = {200: Op("late", "Sum", ((103, 0), (106, 1)), sizes=(4,), call=1, is_gradient=True)}
    ops = {**step.ops, **extra, **reader}
    whole = Step(ops, tuple(sorted(ops)), step.results, step.calls)
    small = condensed(whole)
    assert len(small.ops) < len(whole.ops)
    for cuts in ([], cut(step, "f4"), cut(step, "f2", "f5")):
        assert peak(run(small, cuts)) == peak(run(whole, cuts))


def test_views_share_the_buffer_of_what_they_view():
    step = Step(
        {
            0: Op("x", "Placeholder", sizes=(MB,)),
            1: Op("f", "MatMul", ((0, 0),), sizes=(MB,)),
            2: Op("r", "Reshape", ((1, 0),), sizes=(MB,)),
            3: Op("i", "IdentityN", ((0, 0), (2, 0)), sizes=(MB, MB)),
            4: Op("g", "MatMul", ((3, 1),), sizes=(MB,)),
        },
        (0, 1, 2, 3, 4),
    )
    assert step.buffer((3, 1)) == (1, 0)
    assert step.reads[4] == ((1, 0),)
    assert step.makes[2] == step.makes[3] == ()
    assert timeline(step) == [0, MB, MB, MB, 2 * MB]


def test_results_live_to_the_end():
    step = chain(3)
    kept = dataclasses.replace(step, results=(*step.results, (number(step, "f1"), 0)))
    assert timeline(kept)[-1] == timeline(step)[-1] + MB
