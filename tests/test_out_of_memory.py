"""A step that runs out of memory: the error explains it, and `on_oom="replan"` leaves no trace of the attempt."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from equality import fresh, mostly, noise
from faults import GREEDY, PASSES, Trap, arm, armed, checked

import tfgc
from tfgc._planning import budgets, free_memory
from tfgc._planning.step_plans import StepPlans
from tfgc._training import atomic_step, fit_guard, out_of_memory
from tfgc._training.following_step import FollowingStep

L = keras.layers
X, Y = noise(16, 8), noise(16, 1)
BLOCKS = 3


def momentum():
    """An optimizer with slots. Adam would blow up the rounding in gradients that are zero, of biases before a mean."""
    return keras.optimizers.SGD(0.05, momentum=0.9)


class Noise(L.Layer):
    """Draws from Keras's global seed."""

    def call(self, x, training=False):
        return x + keras.random.normal(tf.shape(x)) if training else x


class Count(L.Layer):
    """Counts its calls in a plain variable, which makes its segment a kept one."""

    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0.0, trainable=False)
        self.more = {"calls": [tf.Variable(0.0, trainable=False)]}

    def call(self, x):
        self.calls.assign_add(1.0)
        self.more["calls"][0].assign_add(1.0)
        return x


def trapped(*more, blocks=BLOCKS):
    x = inputs = keras.Input((8,))
    for i in range(blocks):
        x = L.SpectralNormalization(L.Dense(8))(x) if i == 1 else L.Dense(8, activation="gelu")(x)
        x = Trap(name=f"trap{i}")(x)
        x = L.BatchNormalization(momentum=0.5)(x)  # It reads its input again, so that a replay runs the trap.
        x = Noise()(L.Dropout(0.3)(x))
    for layer in more:
        x = layer()(x)
    return keras.Model(inputs, L.Dense(1, activity_regularizer="l2")(x))


# The second block is kept: what it does differently from the first is that it is not run again.
two_blocks = functools.partial(trapped, blocks=2)


def plan_of(model):
    traps = sum(isinstance(layer, Trap) for layer in model.layers)
    return tfgc.plan(model, strategy="uniform", segments=traps)


def moved_by_a_step(model, *others):
    """Weights, statistics, seeds, slots, metrics, and Keras's global seed."""
    seed = keras.src.random.seed_generator.global_seed_generator().state
    plain = [v for layer in model.layers if isinstance(layer, Count) for v in (layer.calls, *layer.more["calls"])]
    return [*model.variables, *(v for other in others for v in other.variables), *plain, seed]


def state_of(model, *others):
    return [np.array(v) for v in moved_by_a_step(model, *others)]


def assert_equal(found, expected):
    """As DESIGN compares compiled steps by different plans: whole numbers exactly, others but for rounding."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        exact = not np.issubdtype(one.dtype, np.floating)
        np.testing.assert_allclose(one, other, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


def steps(mode, *, trap=None, where=None, at=1, build=trapped, **options):
    """The states after each of three steps of `train_step`, its logs, and whether an armed trap was sprung."""
    model = fresh(build)
    metric = keras.metrics.MeanAbsoluteError(name="mae")
    options = {"run_eagerly": mode == "compiled", "on_oom": "replan", **options}
    step = tfgc.train_step(model, "mse", momentum(), plan=plan_of(model), metrics=[metric], **options)
    states, logs = [], []
    for i in range(3):
        arm(*(trap, where) if i == at else ())
        logs += [float(value) for value in step(X, Y).values()]
        states.append(state_of(model, step.optimizer, metric))
    sprung = trap is not None and armed["trap"] is None
    arm()
    return states, logs, sprung


@functools.cache
def steps_without_fault(mode, build=trapped):
    return steps(mode, build=build, on_oom=None)[:2]


FAULTS = [(f"trap{i}", where) for i in range(BLOCKS) for where in PASSES]
FAULTS.remove((f"trap{BLOCKS - 1}", "replay"))  # The last segment is kept.


def crossed():
    """Each pass once in the fast suite."""
    fast = {("graph", "trap0", "forward"), ("compiled", "trap1", "replay"), ("graph", "trap0", "backward")}
    for mode in ("graph", "compiled"):
        for trap, where in FAULTS:
            yield pytest.param(mode, trap, where, marks=[] if (mode, trap, where) in fast else pytest.mark.slow)


@pytest.mark.gate
@pytest.mark.parametrize(("mode", "trap", "where"), crossed())
def test_a_replanned_step_is_the_step_without_the_fault(mode, trap, where):
    states, logs = steps_without_fault(mode)
    with pytest.warns(tfgc.OutOfMemoryWarning, match="training step of 'functional' ran out of memory"):
        found, found_logs, sprung = steps(mode, trap=trap, where=where)
    assert sprung
    np.testing.assert_allclose(found_logs, logs, rtol=1e-5)
    for one, other in zip(found, states, strict=True):
        assert_equal(one, other)


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["graph", pytest.param("compiled", marks=pytest.mark.slow)])
def test_a_fault_in_the_first_step_which_makes_the_metrics(mode):
    states, logs = steps_without_fault(mode)
    with pytest.warns(tfgc.OutOfMemoryWarning):
        found, found_logs, sprung = steps(mode, trap="trap0", where="backward", at=0)
    assert sprung
    np.testing.assert_allclose(found_logs, logs, rtol=1e-5)
    assert_equal(found[-1], states[-1])


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore::tfgc.NotReplayableWarning")
@pytest.mark.parametrize("mode", ["graph", pytest.param("compiled", marks=pytest.mark.slow)])
def test_plain_variables_are_put_back(mode):
    build = functools.partial(two_blocks, Count)
    states, _ = steps_without_fault(mode, build)
    with pytest.warns(tfgc.OutOfMemoryWarning):
        found, _, sprung = steps(mode, trap="trap1", where="backward", build=build)
    assert sprung
    assert_equal(found[-1], states[-1])


def test_plain_variables_in_lists_are_put_back():
    model = keras.Sequential([keras.Input((8,)), Count(), L.Dense(1)])
    held = [model.layers[0].calls, *model.layers[0].more["calls"]]
    before = [v.numpy() for v in held]
    step = atomic_step.AtomicStep(model, [keras.optimizers.SGD()], "eager")
    step.begin()
    model(X)
    assert [v.numpy() for v in held] != before
    assert step.take_back() is None
    assert [v.numpy() for v in held] == before


def test_metrics_that_the_first_step_makes_forget_it():
    """The losses of several outputs, which Keras makes where it computes them; in a graph its trace makes them."""
    inputs = keras.Input((8,))
    model = keras.Model(inputs, [L.Dense(1, name=name)(inputs) for name in "ab"])
    model.compile("sgd", "mse")
    step = atomic_step.AtomicStep(model, [model.optimizer], "compiled")
    step.begin()
    loss = model.compute_loss(X, [Y, Y], model(X))
    assert step.take_back() is None
    losses = [metric for metric in model.metrics if metric.name in ("a_loss", "b_loss")]
    assert [float(metric.count) for metric in losses] == [0, 0]
    step.begin()
    assert float(model.compute_loss(X, [Y, Y], model(X))) == float(loss)
    step.end()
    assert float(sum(metric.result() for metric in losses)) == pytest.approx(float(loss))


class Slow(keras.optimizers.SGD):
    """Runs out of memory after its first update of a weight."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(checked(gradient, "optimizer", "forward"), variable, learning_rate)


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["graph", "compiled"])
def test_an_update_that_fails_cannot_be_taken_back(run_eagerly):
    model = fresh(two_blocks)
    step = tfgc.train_step(model, "mse", Slow(0.1), plan=plan_of(model), run_eagerly=run_eagerly, on_oom="replan")
    step(X, Y)
    arm("optimizer", "forward")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="failed in its update, so some weights may be"):
        step(X, Y)


@pytest.mark.parametrize("before", [0, pytest.param(1, marks=pytest.mark.gate)])
def test_without_on_oom_the_error_explains_itself(before):
    model = fresh(two_blocks)
    plan = plan_of(model)
    step = tfgc.train_step(model, "mse", "adam", plan=plan)
    for _ in range(before):
        step(X, Y)
    arm("trap0", "backward")
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        step(X, Y)
    message = str(caught.value)
    needed = tfgc.estimate(model, len(X), plan, optimizer=step.optimizer, loss="mse").needed_bytes
    told = re.search(r"its plan \(uniform\) is predicted to need ([\d.]+) kB; the CPU had", message)
    assert float(told[1]) == pytest.approx(needed / 1000, rel=0.02)  # seeds and counters are variables of the step, too
    assert "OOM in trap0, backward" in message
    assert message.index("or on_oom='replan'") > message.index("Try budget=")
    assert isinstance(caught.value.__cause__, tf.errors.ResourceExhaustedError)
    assert int(re.search(r"budget=([\d_]+)", message)[1]) < needed


def deep():
    return keras.Sequential([keras.Input((8,)), *[L.Dense(8, activation="gelu") for _ in range(6)], L.Dense(1)])


def message_of(run):
    """The error of a step that runs out of memory, in one line."""
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        run()
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 600
    return caught.value.message


def failing(attempt):
    """An attempt whose step has run."""
    return lambda *given: fail(attempt(*given))


def fail(*_):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\n\t [[{{node x}}]]")


def test_a_step_is_offered_what_it_can_do(monkeypatch):
    monkeypatch.setattr(FollowingStep, "attempt", failing(FollowingStep.attempt))
    model = deep()
    step = tfgc.train_step(model, "mse", "sgd", plan=tfgc.plan(model, strategy="keep_all"))
    message = message_of(lambda: step(noise(512, 8), noise(512, 1)))
    assert message.startswith("the training step of 'sequential")
    assert "its plan (keep_all) is predicted to need" in message
    assert ". Try budget=" in message
    assert ", or on_oom='replan'. TensorFlow said: OOM when allocating tensor" in message


@pytest.mark.parametrize("way", ["at_end", "several steps", "replicas"])
def test_fit_is_offered_what_it_can_do(monkeypatch, way):
    monkeypatch.setattr(fit_guard._GuardedFit, "attempt", failing(fit_guard._GuardedFit.attempt))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"]) if way == "replicas" else tf.distribute.get_strategy()
    with strategy.scope():
        model = deep()
        model.compile("sgd", "mse", steps_per_execution=2 if way == "several steps" else 1)
    tfgc.enable(model, tfgc.plan(model, 512, strategy="keep_all"))
    message = message_of(lambda: model.fit(noise(512, 8), noise(512, 1), batch_size=512, verbose=0))
    assert message.startswith("a training step of 'sequential")
    assert ". Try budget=" in message
    assert (", or on_oom='replan'. TensorFlow said: OOM when allocating tensor" in message) == (way == "at_end")


@pytest.mark.gate
@pytest.mark.parametrize("when", mostly("after", modes=["before", "after"]))
def test_a_compiled_step_is_run_again(monkeypatch, when):
    """XLA carries no fault, so it is raised around the compiled call: before, or after all was assigned."""
    attempt, faults = FollowingStep.attempt, [fail]

    def fail_once(self, *batch):
        if when == "after" or not faults:
            logs = attempt(self, *batch)
        return faults.pop()() if faults else logs

    expected, _, _ = steps("xla", build=two_blocks, on_oom=None, jit_compile=True)
    monkeypatch.setattr(FollowingStep, "attempt", fail_once)
    with pytest.warns(tfgc.OutOfMemoryWarning, match="runs again by a plan"):
        found, _, _ = steps("xla", build=two_blocks, jit_compile=True)
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize(
    "on_oom", [pytest.param("replan", marks=pytest.mark.gate), pytest.param(None, marks=pytest.mark.slow)]
)
def test_what_xla_cannot_allocate(monkeypatch, on_oom):
    """XLA gets the memory of the variables that a step writes, unless they are held.

    The test holds them where the step does not: TensorFlow would free them twice, and abort.
    """
    monkeypatch.setattr(out_of_memory, "diagnose", lambda planned: out_of_memory.Diagnosis("no plan needs less"))
    model = fresh(two_blocks)
    step = tfgc.train_step(model, "mse", momentum(), plan=plan_of(model), jit_compile=True, on_oom=on_oom)
    step(X, Y)
    before = [value.copy() for value in state_of(model, step.optimizer)]
    held = [tf.identity(v) for v in moved_by_a_step(model, step.optimizer) if on_oom is None]
    arm("trap1", GREEDY[0])
    lost = "TensorFlow may have lost the variables" if on_oom is None else "needs less. TensorFlow said: Out of memory"
    with pytest.raises(tf.errors.ResourceExhaustedError, match=lost):
        step(noise(8, 8), noise(8, 1))
    arm()
    assert all(map(np.array_equal, state_of(model, step.optimizer), before))
    del held


@pytest.mark.gate
def test_weights_need_no_margin(monkeypatch):
    """They are there already: of what is free alone a part is left."""
    model, asked = deep(), []
    fixed = budgets.fixed_bytes(model, "sgd")

    class Step:
        plan = tfgc.plan(model, strategy="keep_all")

        def needed_bytes(self):
            return 10 * fixed

        def within(self, budget):
            asked.append(budget)
            return self

    Step.fixed = fixed
    monkeypatch.setattr(free_memory, "free_bytes", lambda: fixed)
    out_of_memory.diagnose(Step())
    assert asked[0] == int(fixed * 0.9) + fixed


@pytest.mark.gate
def test_the_next_budget_is_a_fifth_less_than_what_the_plan_needed(monkeypatch):
    """Where more than that is free: the prediction was wrong, or memory in pieces."""
    model, asked = deep(), []

    class Step:
        fixed, plan = 0, tfgc.plan(model, strategy="keep_all")

        def needed_bytes(self):
            return 1_000_000

        def within(self, budget):
            asked.append(budget)
            return self

    monkeypatch.setattr(free_memory, "free_bytes", lambda: 10**9)
    out_of_memory.diagnose(Step())
    assert asked[0] == 800_000


@pytest.mark.gate
def test_no_plan_needs_less(monkeypatch):
    """Every attempt runs out of memory: each plan is predicted to need less than the one before, until none does."""
    model = fresh(trapped)
    step = tfgc.train_step(model, "mse", "adam", plan=plan_of(model), on_oom="replan")
    step(X, Y)
    before, needed = state_of(model, step.optimizer), []
    diagnose = out_of_memory.diagnose

    def and_arm_again(planned):
        needed.append(planned.needed_bytes())
        arm("trap0", "forward")
        return diagnose(planned)

    monkeypatch.setattr(out_of_memory, "diagnose", and_arm_again)
    arm("trap0", "forward")
    with (
        pytest.warns(tfgc.OutOfMemoryWarning),
        pytest.raises(tf.errors.ResourceExhaustedError, match="No plan for this batch needs less: use a smaller batch"),
    ):
        step(X, Y)
    arm()
    assert len(needed) > 1
    assert needed == sorted(set(needed), reverse=True)
    for one, other in zip(state_of(model, step.optimizer), before):
        np.testing.assert_array_equal(one, other)


class Greedy(L.Layer):
    """Asks the allocator for more than there is."""

    def call(self, x):
        return x + tf.reduce_sum(tf.random.stateless_uniform([2**50 * tf.shape(x, tf.int64)[0]], [1, 2]))


@pytest.mark.slow
def test_what_the_allocator_refuses():
    """Not injected: TensorFlow tries for ten seconds to get the memory."""
    model = fresh(functools.partial(trapped, Greedy))
    step = tfgc.train_step(model, "mse", "adam", plan=plan_of(model))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="TensorFlow said: OOM when allocating tensor"):
        step(X, Y)


@pytest.mark.parametrize("on_oom", ["Replan", "retry", True])
def test_other_values_of_on_oom_are_refused(on_oom):
    model = fresh(trapped)
    for call in (
        lambda: tfgc.train_step(model, "mse", "sgd", on_oom=on_oom),
        lambda: tfgc.enable(model, on_oom=on_oom),
    ):
        with pytest.raises(tfgc.OptionError, match="must be None, 'replan' or 'raise'"):
            call()


def test_a_step_inside_of_a_function_is_refused():
    model = fresh(trapped)
    step = tfgc.train_step(model, "mse", "sgd", plan=plan_of(model), on_oom="replan")
    with pytest.raises(tfgc.UnsupportedModelError, match="function around it, and cannot be taken back"):
        tf.function(lambda: step(X, Y))()


def fitted(compiled, *, trap=None, where=None, enable=True, on_oom="replan", batch_size=8):
    """The state after two epochs of `fit`, and its history."""
    model = fresh(two_blocks if batch_size == 8 else trapped)
    if enable:
        # Of steps in Python, no plan for this small model needs less than that by segments.
        plan = tfgc.plan(model, strategy="keep_all") if compiled.get("run_eagerly") else plan_of(model)
        tfgc.enable(model, plan, on_oom=on_oom)
    model.compile(momentum(), "mse", metrics=["mae"], **compiled)

    class ArmInTheSecondEpoch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            arm(*(trap, where) if epoch == 1 else ())

    history = model.fit(
        X, Y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0, callbacks=[ArmInTheSecondEpoch()]
    ).history
    assert armed["trap"] is None
    return state_of(model, model.optimizer), history


FIT = {"graph": {}, "compiled": {"run_eagerly": True}}


@pytest.mark.gate
@pytest.mark.parametrize(
    ("mode", "where", "batch_size"),
    [
        ("graph", "backward", 8),
        pytest.param("compiled", "backward", 8, marks=pytest.mark.slow),
        # With a last batch of 4, for which Keras traces the step again.
        pytest.param("graph", "backward", 6, marks=pytest.mark.slow),
        pytest.param("graph", "forward", 6, marks=pytest.mark.slow),
        pytest.param("graph", "replay", 6, marks=pytest.mark.slow),
    ],
)
def test_fit_goes_on_as_if_nothing_had_happened(mode, where, batch_size):
    expected, history = fitted(FIT[mode], on_oom=None, batch_size=batch_size)
    with pytest.warns(tfgc.OutOfMemoryWarning, match="a training step of 'functional' ran out of memory"):
        found, found_history = fitted(FIT[mode], trap="trap0", where=where, batch_size=batch_size)
    assert_equal(found, expected)
    assert {key: pytest.approx(values, rel=1e-5) for key, values in history.items()} == found_history


def test_a_step_that_is_planned_as_a_whole_has_plains_bits_when_it_ran_again(optimizer_off):
    def trained(*sprung, **options):
        model = fresh(functools.partial(trapped, blocks=4))
        model.compile(momentum(), "mse", metrics=["mae"])
        if options:
            tfgc.enable(model, on_oom="replan", verbose=0, **options)
        trap = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: arm(*(sprung if epoch == 1 else ())))
        # With a last batch of 64, for which Keras traces its function again.
        history = model.fit(x, y, batch_size=128, epochs=3, shuffle=False, verbose=0, callbacks=[trap]).history
        assert armed["trap"] is None
        return model, state_of(model, model.optimizer), history

    x, y = noise(320, 8), noise(320, 1)
    _, expected, history = trained()
    for where in ("forward", "backward"):
        with pytest.warns(tfgc.OutOfMemoryWarning, match=r"\(uniform\) is predicted to need.*runs again by a plan"):
            model, found, found_history = trained("trap1", where, strategy="uniform", segments=2)
        (planned,) = tfgc.status(model).plans
        assert planned.plan.operations
        assert planned.plan.strategy == "optimal"
        assert found_history == history
        np.testing.assert_equal(found, expected)


def after_a_fault(model, x, y, *sprung, **options):
    """The states of a model once it trained in `fit`, where a step of the second epoch runs out of memory."""
    model.compile(momentum(), "mse", metrics=["mae"])
    if options:
        tfgc.enable(model, verbose=0, **options)
    trap = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: arm(*(sprung if epoch == 1 else ())))
    model.fit(x, y, batch_size=128, epochs=3, shuffle=False, verbose=0, callbacks=[trap])
    assert armed["trap"] is None
    return state_of(model, model.optimizer)


def test_a_step_in_a_budget_runs_again_unless_it_is_to_raise(optimizer_off):
    x, y = noise(256, 8), noise(256, 1)
    build = functools.partial(trapped, blocks=4)
    expected = after_a_fault(fresh(build), x, y)
    with pytest.warns(tfgc.OutOfMemoryWarning, match="runs again by a plan"):
        found = after_a_fault(fresh(build), x, y, "trap1", "backward", budget="90%")
    np.testing.assert_equal(found, expected)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"Try budget=.*, or on_oom='replan'"):
        after_a_fault(fresh(build), x, y, "trap1", "backward", budget="90%", on_oom="raise")
    arm()


def test_a_model_in_a_budget_may_be_compiled_to_run_what_cannot_be_taken_back():
    def trained(**enabled):
        model = fresh(functools.partial(trapped, blocks=4))
        if enabled:
            tfgc.enable(model, verbose=0, **enabled)
        for options in ({}, {"steps_per_execution": 2}, {}):
            model.compile(momentum(), "mse", **options)
            model.fit(noise(256, 8), noise(256, 1), batch_size=64, shuffle=False, verbose=0)
        return state_of(model)

    assert_equal(trained(budget="90%"), trained())


def test_a_step_in_a_budget_that_writes_to_a_table_trains_and_is_not_run_again():
    class Table(L.Layer):
        def __init__(self):
            super().__init__()
            self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

        def call(self, x):
            key = tf.constant(1, tf.int64)
            self.table.insert(key, self.table.lookup(key) + 1.0)
            return x

    x, y = noise(256, 8), noise(256, 1)
    model = fresh(functools.partial(trapped, Table, blocks=4))
    after_a_fault(model, x, y, budget="90%")
    assert float(model.layers[-2].table.lookup(tf.constant(1, tf.int64))) == 6
    with pytest.raises(tf.errors.ResourceExhaustedError, match="may have written what cannot be put back"):
        after_a_fault(fresh(functools.partial(trapped, Table, blocks=4)), x, y, "trap1", "backward", budget="90%")
    arm()


@pytest.mark.filterwarnings("ignore::tfgc.NothingSavedWarning")
def test_a_budget_without_room_to_wait_for_all_gradients_is_held_without_that():
    def deep():
        return keras.Sequential([keras.Input((256,)), *(L.Dense(256, "relu") for _ in range(24))])

    def least(**options):
        model = fresh(deep)
        model.compile("sgd", "mse")
        tfgc.enable(model, verbose=0, **options)
        model.fit(x, x, batch_size=128, shuffle=False, verbose=0)
        return tfgc.status(model).plans[0].predicted_bytes

    x = noise(640, 256)
    waiting, free = least(on_oom="replan"), least()
    assert waiting > 1.4 * free
    for budget in (int(1.35 * free), int(1.05 * free)):  # seen from what steps are measured to need, and before
        with pytest.raises(tfgc.InfeasibleBudgetError):
            least(budget=budget, on_oom="replan")
        assert least(budget=budget) <= budget


def test_a_train_step_that_is_planned_as_a_whole_runs_again(optimizer_off, monkeypatch):
    def trained(on_oom):
        model = fresh(functools.partial(trapped, blocks=4))
        step = tfgc.train_step(model, "mse", momentum(), metrics=["mae"], on_oom=on_oom)
        for i in range(3):
            arm(*("trap1", "backward") if on_oom and i == 1 else ())
            logs = step(x, y)
        assert armed["trap"] is None
        return [*state_of(model, step.optimizer), *map(np.array, logs.values())]

    x, y = noise(128, 8), noise(128, 1)
    expected = trained(None)
    within = StepPlans.within
    monkeypatch.setattr(StepPlans, "least", lambda plans: within(plans, int(0.8 * plans.plain_bytes)))
    with pytest.warns(tfgc.OutOfMemoryWarning, match=r"\(optimal\) is predicted to need.*runs again by a plan"):
        found = trained("replan")
    np.testing.assert_equal(found, expected)


def test_fit_takes_none_for_an_optional_input():
    class Sum(keras.layers.Layer):
        def call(self, inputs):
            a, b = inputs
            return a if b is None else a + b

    def trained(**options):
        keras.utils.set_random_seed(1)
        a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b", optional=True)
        model = keras.Model({"a": a, "b": b}, keras.layers.Dense(1)(keras.layers.Dense(8, "relu")(Sum()([a, b]))))
        model.compile("sgd", "mse")
        if options:
            tfgc.enable(model, strategy="keep_all", verbose=0, **options)
        batch = {"a": np.ones((8, 4), "float32"), "b": None}, np.ones((8, 1), "float32")
        return model.fit((batch for _ in range(2)), steps_per_epoch=2, shuffle=False, verbose=0).history["loss"]

    assert trained(on_oom="replan") == pytest.approx(trained())


@pytest.mark.gate
def test_fit_reports_the_losses_of_outputs_as_keras_does():
    """Keras weights them by the batch size if the step is traced for one, and not as it traces `fit`."""

    def history(enable):
        inputs = keras.Input((8,))
        x = keras.layers.Dense(8, "relu", kernel_initializer="ones")(inputs)
        outputs = [keras.layers.Dense(2, kernel_initializer="ones", name=name)(x) for name in "ab"]
        model = keras.Model(inputs, outputs)
        model.compile("sgd", "mse")
        if enable:
            tfgc.enable(model, strategy="keep_all", on_oom="replan")
        x = np.arange(48, dtype="float32").reshape(6, 8) / 48
        return model.fit(x, [x[:, :2], x[:, 2:4]], batch_size=4, epochs=2, shuffle=False, verbose=0).history

    assert history(True) == {key: pytest.approx(values) for key, values in history(False).items()}


def test_fit_of_a_plain_model_raises_tensorflows_error():
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        fitted({}, trap="trap0", where="backward", enable=False)
    assert "its plan" not in str(caught.value)
    arm()


@pytest.mark.gate
def test_disable_leaves_nothing_behind():
    model = fresh(two_blocks)
    model.compile("sgd", "mse")
    before = set(vars(model))
    tfgc.enable(model, plan_of(model), on_oom="replan")
    model.train_on_batch(X, Y)
    guarded = model.train_function
    tfgc.disable(model)
    # Graphs that were traced meanwhile may still be asked for gradients; they hold what that takes only weakly.
    assert set(vars(model)) - before <= {"_metrics_built", "_self_traces"}
    assert model.train_function != guarded
    model.train_on_batch(X, Y)


def test_layers_do_not_go_with_on_oom():
    with pytest.raises(tfgc.OptionError, match="leave out layers="):
        tfgc.enable(fresh(trapped), on_oom="replan", layers=["dense"])


def test_several_steps_per_execution_are_refused():
    model = tfgc.enable(fresh(trapped), strategy="uniform", on_oom="replan")
    model.compile("sgd", "mse", steps_per_execution=2)
    with pytest.raises(tfgc.OptionError, match=r"steps_per_execution=2\) runs several at once"):
        model.fit(X, Y, verbose=0)


def test_replicas_are_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = trapped()
        model.compile("sgd", "mse")
        with pytest.raises(tfgc.OptionError, match="replicas cannot be taken back"):
            tfgc.train_step(model, "mse", "sgd", plan=plan_of(model), on_oom="replan")
    tfgc.enable(model, strategy="uniform", on_oom="replan")
    with pytest.raises(tfgc.OptionError, match="replicas cannot be taken back"):
        model.fit(X, Y, verbose=0)
