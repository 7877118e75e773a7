"""Write docs/compatibility.md, which lists what works in which execution mode, from the tables that the tests prove.

python scripts/matrix.py
"""

import itertools
import pathlib
import sys

from tfgc._pairs import backward

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
INTRODUCTION = """\
# Compatibility

What works in which mode. `python scripts/matrix.py` writes this page from the tables that
`tests/test_compatibility.py`, `tests/test_fit.py` and `tests/test_control_flow.py` prove, on TensorFlow 2.21 and
Keras 3.15; do not edit it.

- **yes**: Several steps give the same losses, weights, statistics and seeds as the same mode without tfgc, in a custom
  loop also the same gradients. They are bit-equal with TensorFlow's graph optimizer off, otherwise within 1e-5 of each
  norm in float32 (5e-3 in float16, 5e-2 in bfloat16, 1e-12 in float64).
- **Keras**: Plain Keras or TensorFlow does not support it either, and raises the error quoted below the table.
"""


def main():
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


def page():
    """Return the text of the page."""
    sys.path.insert(0, str(ROOT / "tests"))
    import compatibility_table
    import test_control_flow
    import test_fit

    layers = [
        (row.group, row.name, {mode: row.cell(mode) for mode in compatibility_table.MODES})
        for row in compatibility_table.ROWS
    ]
    features = [("`model.fit`", name, cells(feature, test_fit.MODES)) for name, feature in test_fit.FEATURES.items()]
    lines = [INTRODUCTION, "## Layers, models and precision\n"]
    lines += [f"- {name}: {meaning}" for name, meaning in compatibility_table.MODES.items()]
    lines += ["", *table(layers, compatibility_table.MODES), "", "## `model.fit` and its features\n"]
    lines += ["Modes: the default graph, `run_eagerly=True` op by op, the same with compiled segments,"]
    lines += ["`jit_compile=True`, `steps_per_execution=4`.", "", *table(features, test_fit.MODES), ""]
    written = "; ".join(test_fit.WRITERS)
    read = "; ".join(name for name, reader in test_fit.READERS.items() if reader.refused is None)
    lines += ["## Files\n", f"What an enabled model writes equals what the plain one writes: {written}."]
    lines += ["", f"Read back, the plan file enables it again: {read}."]
    lines += ["", "## Gradients and control flow\n", *control_flow(test_control_flow)]
    return "\n".join(lines) + "\n"


def cells(feature, modes):
    """Return a row of the table of `fit`, in the form of the other table."""
    return {mode: ("plain", feature.refused[mode]) if mode in feature.refused else ("works", "") for mode in modes}


def table(rows, modes):
    """Yield Markdown of the rows, by group, with numbered messages below."""
    messages = []
    yield "| " + " | ".join(["", *modes]) + " |"
    yield "| --- |" + " --- |" * len(modes)
    for group, members in itertools.groupby(rows, key=lambda row: row[0]):
        yield f"| **{group}** |" + " |" * len(modes)
        for _, name, row in members:
            yield f"| {name} | " + " | ".join(cell(*row[mode], messages) for mode in modes) + " |"
    yield ""
    yield from (f"{number}. {message}" for number, message in enumerate(messages, 1))


def cell(kind, words, messages):
    """Return the text of a cell; its message gets a number."""
    if kind == "works":
        return "yes"
    if words not in messages:
        messages.append(words)
    return f"Keras ({messages.index(words) + 1})"


def control_flow(tests):
    """Yield Markdown of what is differentiated how; `tests` is the module that proves it."""
    kinds = ", ".join(kind.__name__.replace("_", " ") for kind in tests.KINDS)
    yield f"Recomputed functions and enabled models ({kinds}) give the gradients of plain code:"
    yield ""
    yield "- differentiated through, to second order, from within `tf.function` and from outside: "
    yield f"  {'; '.join(tests.THROUGH)}"
    yield f"- differentiated inside of the body: {'; '.join(tests.INSIDE)}"
    yield "- by `tape.jacobian`, `batch_jacobian`, persistent tapes, `ForwardAccumulator`, gradients of gradients"
    yield "- None where plain code gives None, `tf.IndexedSlices` where it gives those"
    yield ""
    yield "Refused: a `ForwardAccumulator` inside a `tf.function`, through a branch or a loop:"
    yield ""
    yield f"> {backward.COPIED_BRANCH.format('The layer')}."


if __name__ == "__main__":
    main()
