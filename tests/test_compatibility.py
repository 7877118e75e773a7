"""Every row of the table in `compatibility_table.py` in every execution mode.

The gate runs each row in one mode, by turns.
The rest of the crossings is `slow`: test_fit.py has every mode of `fit`, test_stateful_layers.py XLA.
"""

import keras
import pytest
import tensorflow as tf
from compatibility_table import BATCH, MODES, ROWS
from equality import TOLERANCE, assert_equal, assert_same, fresh, noise, states, train

import tfgc

FIT = {
    "fit": {},
    "fit, eager": {"run_eagerly": True},
    "fit, XLA": {"jit_compile": True},
    "fit, 4 steps": {"steps_per_execution": 4},
}


def crossings():
    for i, row in enumerate(ROWS):
        for mode in MODES:
            fast = mode == ("graph", "eager", "compiled", "fit")[i % 4]
            marks = pytest.mark.gate if fast else pytest.mark.slow
            yield pytest.param(row, mode, id=f"{row.name}-{mode}", marks=marks)


def enabled(row, mode):
    model = fresh(row.build)
    return tfgc.enable(model, strategy="uniform", segments=3)


def first_batch(x):
    if isinstance(x, tf.SparseTensor):
        return tf.sparse.slice(x, [0, 0], [BATCH, x.shape[1]])
    return tf.nest.map_structure(lambda t: t[:BATCH], x)


def loop(row, model, mode):
    x = first_batch(row.x)
    y = [noise(BATCH, *t.shape[1:], seed=9) for t in model.outputs]
    graph, xla = mode in ("graph", "XLA"), mode == "XLA"
    return train(model, x, y, graph=graph, jit_compile=xla or None, lr=0.01)


def fit(row, model, mode):
    total = 3 * BATCH
    outputs = model.outputs[0] if isinstance(model, keras.Sequential) else model.output
    y = keras.tree.map_structure(lambda t: noise(total, *t.shape[1:], seed=9), outputs)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", **FIT[mode])
    model.optimizer.build(model.trainable_variables)  # else Keras traces each step twice
    stateful = any(getattr(layer, "stateful", False) for layer in model.layers)
    history = model.fit(row.x, y, batch_size=BATCH if stateful else 10, epochs=2, shuffle=False, verbose=0).history

    def values(variables):
        return {f"{i} {v.path}": v.numpy() for i, v in enumerate(variables)}

    # In half precision the tolerance is more than weights move, but not more than velocities.
    velocities = [] if row.policy in ("float32", "float64") else [values(model.optimizer.variables)]
    return [history, values(states(model)), *velocities]


PLAIN = {}


def plain(row, mode, exact):
    """The plain record of a row, made once for all cells that are compared with it."""
    if (row.name, mode, exact) not in PLAIN:
        PLAIN[row.name, mode, exact] = (fit if mode in FIT else loop)(row, fresh(row.build), mode)
    return PLAIN[row.name, mode, exact]


@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning", "ignore:.*sparse.*dense:UserWarning")
@pytest.mark.parametrize(("row", "mode"), crossings())
def test_cell(row, mode):
    keras.config.set_dtype_policy(row.policy)
    run = fit if mode in FIT else loop
    exact = mode in ("eager", "fit, eager")
    plain_mode = {"compiled": "graph", "eager": "graph", "fit, eager": "fit"}.get(mode, mode)
    kind, words = row.cell(mode)
    if kind == "plain":
        with pytest.raises(Exception, match=words):
            run(row, fresh(row.build), plain_mode)
        return
    expected = plain(row, plain_mode, exact)
    given = run(row, enabled(row, mode), mode)
    if run is loop:
        assert_equal(expected, given, exact=exact, policy=row.policy)
    else:
        assert_same(expected, given, 0.0 if exact else TOLERANCE[row.policy], row.name)


@pytest.mark.parametrize(
    ("name", "effect"), [("tf.numpy_function", "PyFunc"), ("writes to a plain tf.Variable", "AssignVariableOp")]
)
def test_what_has_an_effect_runs_once_and_what_reads_it_again(name, effect):
    (row,) = [row for row in ROWS if row.name == name]
    model = fresh(row.build)
    runs = tfgc.estimate(model, BATCH, tfgc.plan(model, BATCH, strategy="uniform", segments=3)).runs
    assert [count for node, count in runs.items() if node.endswith(f"/{effect}")] == [1]
    assert [count for node, count in runs.items() if node.endswith("/add")] == [2]
