"""Measuring, rendering and the command line."""

import collections
import contextlib
import dataclasses
import importlib.metadata
import io
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import threading
import time

import keras
import psutil
import pytest
import rich.console
from PIL import Image

import tfgc
from tfgc import Measurement, zoo
from tfgc._cli.group import cli
from tfgc._errors import OptionError
from tfgc._measure import case_choice, compare, process, training_run, worker
from tfgc._records import measurement, predicted, results_json
from tfgc._records.front import BudgetChoice, FrontPoint, FrontRecord
from tfgc._records.job import PredictionJob, Reply
from tfgc._records.measurement import Study
from tfgc._report import command_tables, fronts, markdown, plots, study_summary, study_tables, svg


def small(image_size=32):
    return keras.Sequential(
        [
            keras.Input((image_size, image_size, 3)),
            *(keras.layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(12)),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2),
        ]
    )


def frozen():
    model = small()
    model.trainable = False
    return model


@pytest.fixture(scope="session")
def measured():
    with contextlib.redirect_stderr(io.StringIO()) as seen:
        found = tfgc.compare(small, batch_size=32, strategies=["uniform:4"], steps=2)
    return found, seen.getvalue()


@pytest.mark.gate
def test_every_case_is_measured_in_a_separate_process(measured):
    results, seen = measured
    names = ["plain-eager", "plain-graph", "uniform(4)-compiled", "uniform(4)-graph"]
    assert [r.name for r in results] == names
    lines = [rf"tfgc: small: {re.escape(name)}: peak [\d.]+ MB \({i} of 5 parts\)" for i, name in enumerate(names, 1)]
    assert re.fullmatch("\n".join([*lines, r"tfgc: small: timing in turn \(5 of 5 parts\)\n"]), seen)
    for r in results:
        assert r.status == "ok", r.detail
        assert len(r.losses) == 3
        assert 0 < r.peak_bytes <= r.peak_bytes_max
        assert r.process_peak_bytes > r.process_base_bytes > 10**8
        assert r.step_seconds > 0
        assert max(count for _, count in r.timeline) > 0
        assert r.machine["tensorflow"]


@pytest.mark.gate
def test_recomputed_cases_use_less_memory_and_agree_in_their_losses(measured):
    results, _ = measured
    eager, graph = results[:2]
    for r in results[2:]:
        assert r.peak_bytes < 0.8 * eager.peak_bytes
        assert r.losses == pytest.approx(eager.losses, rel=1e-5)
        cut_off, overhead = r.against(graph)
        assert cut_off == 1 - r.peak_bytes / graph.peak_bytes
        ratios = [a / b for a, b in zip(r.round_seconds, graph.round_seconds)]
        assert overhead == pytest.approx(statistics.median(ratios) - 1)


@pytest.mark.gate
def test_all_cases_take_turns(measured):
    for r in measured[0]:
        assert len(r.round_seconds) == 2
        assert r.step_seconds == statistics.median(r.round_seconds)
    assert "median of 2 steps, in which cases took turns" in " ".join(str(measured[0]).split())


@pytest.mark.gate
def test_a_comparison_prints_saves_and_reports_itself(measured, tmp_path):
    found = measured[0]
    assert "uniform(4)-graph" in str(found)
    assert found._repr_html_().count("<tr>") == 1 + len(found) == 5
    assert len(repr(found)) < 200
    found.save(tmp_path / "results.json")
    assert results_json.read(tmp_path / "results.json").studies == (found.study,)
    found.report(tmp_path / "report.html")
    assert "uniform(4)-graph" in (tmp_path / "report.html").read_text()
    with pytest.raises(OptionError, match=r"a report is .html"):
        found.report(tmp_path / "report.pdf")


def in_turn(*seconds):
    return Measurement("net", "sqrt", "graph", 8, peak_bytes=400, step_seconds=1.0, round_seconds=seconds)


def test_a_difference_within_the_spread_is_called_that():
    plain = dataclasses.replace(in_turn(1.0, 1.0, 1.0, 1.0, 1.0), case="plain", peak_bytes=800)
    slower, noisy = in_turn(1.2, 1.25, 1.3, 1.1, 1.2), in_turn(0.7, 1.25, 0.5, 1.1, 0.6)
    for ours, cell in ((slower, "+20 % (+10 to +30)"), (noisy, "within the spread (-50 to +25 %)")):
        assert command_tables.rows([plain, ours])[1][-1] == cell
        assert f"overhead {cell}." in study_summary.summary(Study("net", 8, (plain, ours)))


@pytest.mark.parametrize(("rounds", "left_out"), [(2, 0), (5, 0), (7, 0), (8, 1), (9, 1), (11, 2), (20, 5)])
def test_a_spread_holds_the_median_nine_times_in_ten(rounds, left_out):
    """By counting: of n equal chances the number of values below the median is binomial."""
    assert in_turn(*range(1, rounds + 1)).spread() == (1 + left_out, rounds - left_out)
    misses = sum(2 * math.comb(rounds, k) for k in range(left_out + 1)) / 2**rounds
    assert misses <= 0.1 or rounds < 5
    assert misses + 2 * math.comb(rounds, left_out + 1) / 2**rounds > 0.1


def test_cases_that_do_not_fit_together_keep_the_times_that_they_had_apart(monkeypatch):
    cases = case_choice.plan_cases(small, 2)[:2]
    records = [dataclasses.replace(r, network="small") for r in RECORDS[:2]]
    for ended in (process.Ended(None, -9, BANNER, []), process.Ended(Reply(failure="MemoryError"), 0, "", [])):
        monkeypatch.setattr(process, "run", lambda job, ended=ended: ended)
        assert compare._timed(cases, records) == records


@pytest.mark.gate
def test_a_case_that_runs_out_of_memory_is_a_row(measured):
    case = case_choice.plan_cases(small, 4096, ["sqrt"], steps=1, memory_limit=1_500_000_000)[0]
    record = compare.run(case)
    assert record.status == "oom", record.detail
    rows = command_tables.rows([*measured[0], record])
    assert rows[-1][:2] == ["plain-eager", "oom"]


def test_a_killed_case_is_a_row(monkeypatch):
    monkeypatch.setattr(process.memory_profiler, "memory_usage", lambda child, **_: child.kill())
    record = compare.run(case_choice.plan_cases(small, 2, ["sqrt"])[0])
    assert (record.status, record.detail) == ("oom", KILLED)


BANNER = "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow."
KILLED = "died of SIGKILL (killed, as the system does where memory runs out)"
CRASHED = "died of SIGSEGV (native code crashed)"


def out_of_luck():
    raise ValueError("no luck\nat all")


def out_of_memory():
    raise MemoryError


def test_a_child_replies_why_it_found_nothing():
    case = dataclasses.replace(case_choice.plan_cases(small, 2)[0], network="net", build=(out_of_luck, None))
    assert worker._reply(case) == Reply(failure="ValueError: no luck")
    assert worker._reply(dataclasses.replace(case, build=(out_of_memory, None))).out_of_memory
    reply = worker._reply(dataclasses.replace(case, build=("resnet5", None)))
    assert isinstance(reply.error, OptionError)
    assert not reply.out_of_memory


@pytest.mark.parametrize(
    ("reply", "code", "stderr", "found"),
    [
        (Reply(failure="ValueError: no luck"), 0, "", ("failed", "ValueError: no luck")),
        (Reply(error=OptionError("no such layer")), 0, "", ("failed", "no such layer")),
        (Reply(failure="MemoryError: ", out_of_memory=True), 0, "", ("oom", "ran out of memory")),
        (Reply(failure="ValueError: no luck"), 0, "MemoryError()", ("failed", "ValueError: no luck")),
        (Reply(failure="ValueError: no luck"), -6, "double free", ("failed", "ValueError: no luck")),
        (Reply(failure="MemoryError: ", out_of_memory=True), -6, "double free", ("oom", "ran out of memory")),
        (None, -6, "what(): std::bad_alloc", ("oom", "ran out of memory")),
        (None, 1, "ImportError: failed to map segment from shared object", ("oom", "ran out of memory")),
        (None, -9, BANNER, ("oom", KILLED)),
        (None, -11, BANNER, ("oom", f"under a memory limit it {CRASHED}")),
        (None, 1, "Traceback\nkeras.Error: no luck\nI0000 00 bye", ("failed", "keras.Error: no luck")),
        (None, 3, "", ("failed", "exit code 3")),
    ],
)
def test_what_becomes_of_a_case_without_figures(reply, code, stderr, found, monkeypatch):
    monkeypatch.setattr(process, "run", lambda job: process.Ended(reply, code, stderr, []))
    case = case_choice.plan_cases(small, 2, memory_limit=10**9)[0]
    record = compare.run(case)
    assert (record.status, record.detail) == found


@pytest.mark.parametrize(
    ("code", "stderr", "limited", "found"),
    [
        (-11, BANNER, False, ("failed", CRASHED)),
        (-11, BANNER, True, ("oom", f"under a memory limit it {CRASHED}")),
        (
            -6,
            f"{BANNER}\nkeras.Error: no luck",
            False,
            ("failed", "died of SIGABRT (native code gave up): keras.Error: no luck"),
        ),
        (-40, BANNER, False, ("failed", "died of signal 40")),
    ],
)
def test_what_killed_a_process_is_named(code, stderr, limited, found, monkeypatch):
    monkeypatch.setattr(process, "_is_limited", lambda: limited)
    assert process.Ended(None, code, stderr, []).outcome() == found


def test_a_limit_that_the_shell_set_counts(monkeypatch):
    limits = dict.fromkeys((resource.RLIMIT_AS, resource.RLIMIT_DATA), (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    assert not process._is_limited()
    limits[resource.RLIMIT_AS] = (10**9, resource.RLIM_INFINITY)
    assert process._is_limited()


def test_planning_that_is_killed_is_tried_once_more(monkeypatch):
    job = PredictionJob(tuple(case_choice.plan_cases(small, 2)))
    killed, done = process.Ended(None, -9, BANNER, []), process.Ended(Reply("found"), 0, "", [])
    for ends, found in (([killed, done], "found"), ([done], "found"), ([killed, killed, done], None)):
        monkeypatch.setattr(process, "run", lambda job, ends=ends: ends.pop(0))
        if found is None:
            with pytest.raises(tfgc.TfgcError, match="'small' cannot be built and planned: died of SIGKILL"):
                process.ask(job)
            assert ends == [done]
        else:
            assert process.ask(job) == found
            assert not ends


def test_a_child_whose_parent_has_ended_does_nothing(tmp_path):
    command = [sys.executable, "-P", "-m", "tfgc._measure.worker", str(tmp_path / "answer"), str(os.getpid() + 1)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "the process that started this one has ended\n")


class Dying:
    """Aborts the process that unpickles it, when that ends."""

    def __reduce__(self):
        return eval, ("__import__('atexit').register(__import__('os').abort)",)


@pytest.mark.gate
def test_a_child_that_dies_after_its_reply_has_replied():
    case = dataclasses.replace(case_choice.plan_cases(small, 2)[0], build=("resnet5", None), options={"x": Dying()})
    ended = process.run(case)
    assert ended.code == -6
    assert "did you mean" in ended.why


def gone():
    sys.exit()


def test_a_builder_that_ends_the_process_is_a_failure():
    case = dataclasses.replace(case_choice.plan_cases(small, 2)[0], build=(gone, None))
    assert worker._reply(case) == Reply(failure="SystemExit")


def test_the_version_of_a_copy_that_is_not_installed(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert training_run.machine()["tfgc"] == tfgc.__version__


def test_a_timeline_whose_step_fails_leaves_no_thread():
    def fails():
        raise MemoryError

    before = threading.active_count()
    with pytest.raises(MemoryError):
        training_run.timeline(fails, lambda: 0)
    assert threading.active_count() == before


def test_a_timeline_counts_from_before_its_step():
    """Also where the step is over before the thread takes its first sample."""
    allocated = [1000]
    timeline = training_run.timeline(lambda: allocated.append(1600), lambda: allocated[-1])
    assert timeline[0] == (0.0, 0)


def test_it_is_an_error_if_nothing_was_measured():
    def study(*statuses):
        return Study("net", 8, tuple(Measurement("net", "sqrt", "graph", 8, s, "why") for s in statuses))

    for fine in (study(), study("oom", "ok")):
        compare.check_measured(fine)
    for wrong in (study("oom", "failed", "ok"), study("oom", "failed")):
        with pytest.raises(tfgc.TfgcError, match="of net did not finish; sqrt-graph: failed, why"):
            compare.check_measured(wrong)
    with pytest.raises(tfgc.TfgcError, match="2 of 2 cases of net did not finish; sqrt-graph: oom, why"):
        compare.check_measured(study("oom", "oom"))


def test_errors_of_a_prediction_are_raised_again(monkeypatch):
    job = PredictionJob(tuple(case_choice.plan_cases(small, 2)))
    for reply, kind, words in [
        (Reply(error=tfgc.PlanMismatchError("another model")), tfgc.PlanMismatchError, "^another model$"),
        (
            Reply(failure="ValueError: no luck"),
            tfgc.TfgcError,
            "'small' cannot be built and planned: ValueError: no luck",
        ),
        (None, tfgc.TfgcError, "'small' cannot be built and planned: exit code 5"),
    ]:
        monkeypatch.setattr(process, "run", lambda job, reply=reply: process.Ended(reply, 5, "", []))
        with pytest.raises(kind, match=words):
            process.ask(job)


def test_a_case_that_fails_says_why():
    case = case_choice.plan_cases(small, 2, ["sqrt:999"])[-1]
    record = compare.run(case, worker.done(PredictionJob((case,))).of(case))
    assert record.status == "failed"
    assert "segments=999" in record.detail


@pytest.mark.slow
def test_a_plain_model_that_cannot_be_trained_is_an_error():
    with pytest.raises(tfgc.TfgcError, match="no trainable weights"):
        tfgc.compare(frozen, 2)


def test_nothing_is_measured_after_plain_training_failed_in_both_modes(monkeypatch, capsys):
    def measure(case, _):
        with pytest.raises(tfgc.TfgcError, match="no trainable weights") as error:
            worker.done(case)
        return Measurement(case.network, case.case, case.mode, 2, status="failed", detail=str(error.value))

    monkeypatch.setattr(process, "ask", worker.done)
    monkeypatch.setattr(compare, "run", measure)
    with pytest.raises(tfgc.TfgcError, match="no trainable weights"):
        tfgc.compare(frozen, 2, verbose=0)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2, "steps": 0}, "steps=0"),
        ({"batch_size": 2, "strategies": ["sqrrt"]}, "did you mean 'sqrt'"),
        ({"batch_size": 2, "strategies": ["sqrt:many"]}, "number of segments"),
        ({"batch_size": 2, "modes": ["lazy"]}, "mode='lazy'"),
        ({"batch_size": 2, "strategies": ["sqrt:0"]}, "segments=0"),
        ({"batch_size": 2, "strategies": ["manual"]}, "needs the option keep"),
        ({"batch_size": 2, "strategies": []}, "at least one strategy"),
        ({"batch_size": 2, "image_size": -1}, "image_size=-1"),
        ({"batch_size": 2, "modes": ()}, r"modes=\(\): name at least one mode"),
        ({"batch_size": 2, "memory_limit": "4GB"}, "memory_limit='4GB': must be an integer"),
        ({"batch_size": 2, "memory_limit": -4}, "memory_limit=-4"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments, message):
    with pytest.raises(OptionError, match=message):
        tfgc.compare(small, **arguments)


def test_a_model_in_place_of_its_builder_is_refused():
    with pytest.raises(OptionError, match="a function that builds"):
        tfgc.compare(small(), 2)


@pytest.mark.gate
def test_a_child_that_is_killed_leaves_no_temporary_files(tmp_path, monkeypatch):
    """As AutoGraph's, which TensorFlow removes when a process ends by itself."""
    network = tmp_path / "leaving.py"
    network.write_text(
        "import os, signal, tempfile\n\n\ndef build():\n"
        "    tempfile.mkstemp(prefix='__autograph_generated_file')\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    done = tfgc_command("compare", "leaving:build", "--batch-size", "2", "--strategy", "sqrt")
    assert "SIGTERM" in done.stdout + done.stderr
    assert not list(temporary.iterdir())


@pytest.mark.gate
def test_no_child_outlives_its_parent():
    code = "import tfgc; tfgc.compare('sample_cnn', 64)"
    parent = subprocess.Popen([sys.executable, "-c", code])
    children = []
    for _ in range(100):
        time.sleep(0.1)
        children = psutil.Process(parent.pid).children()
        if children:
            break
    time.sleep(2)
    parent.terminate()
    parent.wait()
    assert children
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


@pytest.mark.gate
def test_no_child_outlives_a_parent_that_is_killed_while_the_child_starts():
    code = "import tfgc; tfgc.compare('sample_cnn', 64)"
    for wait in (0, 0.01, 0.03, 0.1):
        parent = subprocess.Popen([sys.executable, "-c", code])
        children = []
        while not children and parent.poll() is None:
            children = psutil.Process(parent.pid).children()
        time.sleep(wait)
        parent.kill()
        parent.wait()
        assert children
        _, alive = psutil.wait_procs(children, timeout=5)
        assert all(child.status() == psutil.STATUS_ZOMBIE for child in alive)  # that nobody has asked for yet


@pytest.mark.gate
def test_results_file_survives_a_round_trip_and_refuses_others(measured):
    front = FrontRecord(
        "small",
        32,
        "flop",
        10,
        20,
        "conv2d",
        (POINT,),
        (),
        (BudgetChoice("1GB", 10**9, POINT), BudgetChoice("1", 1, None, 9)),
    )
    study = measurement.Study("small", 32, tuple(measured[0]), front)
    written = measurement.Results((study,), "tfgc compare")
    text = results_json.to_json(written)
    assert results_json.from_json(text) == written
    assert any(record.parts and record.predicted for record in measured[0])
    for bad in ("", "{}", text[:100], text.replace('"version": 6', '"version": 9')):
        with pytest.raises(tfgc.TfgcError):
            results_json.from_json(bad)


POINT = FrontPoint("least", 10, 20, 30, 0.5, 0.25, 4, True)
FRONT = FrontRecord(
    "net", 8, "s", 10, 20, "conv", (POINT,), (), (BudgetChoice("1GB", 10**9, POINT), BudgetChoice("1", 1, None, 9))
)
RECORDS = [
    Measurement("net", "plain", "eager", 8, peak_bytes=1000, process_peak_bytes=5, step_seconds=2.0, losses=(1.0, 0.5)),
    Measurement("net", "plain", "graph", 8, peak_bytes=800, process_peak_bytes=5, step_seconds=1.0, losses=(1.0, 0.5)),
    Measurement("net", "sqrt", "graph", 8, peak_bytes=400, process_peak_bytes=5, step_seconds=1.5, losses=(1.0, 0.5)),
    Measurement("net", "sqrt", "compiled", 8, status="oom", detail="killed"),
]


def test_table_of_hand_made_records():
    rows = command_tables.rows(RECORDS)
    assert rows[0][2:4] == ["baseline", "-25.0 %"]
    assert rows[2] == ["sqrt-graph", "400 B", "60.0 %", "50.0 %", "5 B", "1.5 s", "-25 %", "+50 %"]
    assert rows[3] == ["sqrt-compiled", "oom", *[""] * 6]
    text = markdown.table(command_tables.comparison(RECORDS))
    assert "| sqrt-graph | 400 B | 60.0 % |" in text
    assert "killed" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_the_window_with_every_figure_whole(width):
    long = dataclasses.replace(RECORDS[2], case="uniform(12)", peak_bytes=387, step_seconds=0.0123)
    records = [*RECORDS, long]
    trained = tuple(dataclasses.replace(record, losses=3 * record.losses) for record in RECORDS)
    tables = [
        (command_tables.comparison(records), command_tables.rows(records)),
        (study_tables.losses(Study("net", 8, trained)), [["step 0", "1"], ["step 1", "0.5"]]),
        (fronts.table(FRONT), fronts.rows(FRONT)),
        (fronts.budgets(FRONT), fronts.budgets(FRONT).rows),
    ]
    for table, rows in tables:
        out = io.StringIO()
        rich.console.Console(file=out, width=width, force_terminal=True, color_system=None).print(table)
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        for cell in (cell for row in rows for cell in row):
            assert any(cell in line for line in lines), (cell, out.getvalue())
        assert ("\u2500" in out.getvalue()) is (width > 40)  # a table's rule


def test_the_losses_of_many_steps_are_a_table_in_a_terminal():
    shown = [dataclasses.replace(r, losses=tuple(1 / (i + 3) for i in range(30))) for r in RECORDS[:3]]
    shown[2] = dataclasses.replace(shown[2], losses=(*shown[2].losses[:29], 33 / 32 / 32))
    table = study_tables.losses(Study("net", 8, tuple(shown)))
    assert table.heads == ("", "plain-eager", "plain-graph", "sqrt-graph")
    assert [row[0] for row in table.rows] == [*(f"step {i}" for i in range(30)), "largest relative difference"]
    assert list(table.rows[-1][1:]) == ["baseline", "baseline", "0.031"]
    out = io.StringIO()
    command_tables.print_table(table, out)
    assert "step 29 " in out.getvalue()
    assert "\u2500" in out.getvalue()  # a table's rule


@pytest.mark.gate
def test_plot_is_a_picture(measured, tmp_path):
    path = tmp_path / "memory.png"
    plot = plots.memory(measurement.Study("small", 32, (*measured[0], RECORDS[3])))
    svg.write_png(plot, path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size[0] > 800
    with pytest.raises(tfgc.TfgcError, match="cannot write"):
        svg.write_png(plot, tmp_path / "no" / "such.png")


def test_plot_without_matplotlib_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(tfgc.TfgcError, match=r"tfgc\[plot\]"):
        cli(["sweep", "sample_cnn", "--batch-size", "8", "--plot", str(tmp_path / "x.png")], standalone_mode=False)


def test_modes_that_there_are_not_are_refused():
    with pytest.raises(OptionError, match=r"mode='grap'.* mean 'graph'"):
        tfgc.compare(small, 2, modes="grap")


def test_old_results_call_compiled_segments_compiled():
    part = predicted.SegmentSummary("a", "b", 2, "recompute")
    names = {"plain": (), "sqrt": (part,), "died": ()}
    records = [Measurement("net", name, "eager", 8, parts=parts) for name, parts in names.items()]
    records += [Measurement("net", "sqrt", "graph", 8)]
    new = measurement.Results((measurement.Study("net", 8, tuple(records)),))
    text = results_json.to_json(new)
    assert results_json.from_json(text) == new
    (study,) = results_json.from_json(text.replace('"version": 6', '"version": 2')).studies
    assert [record.name for record in study.records] == [
        "plain-eager", "sqrt-compiled", "died-compiled", "sqrt-graph",
    ]  # fmt: skip
    assert [record.baseline for record in study.records] == [*["plain-eager"] * 3, "plain-graph"]


def tfgc_command(*arguments):
    return subprocess.run([sys.executable, "-m", "tfgc", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.gate
def test_zoo_networks_have_the_layers_they_are_named_for():
    model = zoo.build("sample_cnn")
    filters = [layer.filters for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]
    assert filters == [10, 20, 40, 60, 40, 40, 40, 40, 40, 20, 20]
    assert model.input_shape == (None, 256, 256)
    assert model.output_shape == (None, 10)
    big = zoo.build("big_cnn(2, 3)", image_size=32)
    filters = [layer.filters for layer in big.layers if isinstance(layer, keras.layers.Conv2D)]
    assert filters == [10, 40, 20] * 6
    assert zoo.build("mobilenet-v2", 32).name.startswith("mobilenetv2")
    for name, message in [
        ("samplecnn", "did you mean 'sample_cnn'"),
        ("big_cnn(a)", r"no network 'big_cnn\(a\)'"),
        ("big_cnn(1, 2, 3, 4)", "it takes at most 3"),
        ("resnet50(1)", "only tfgc's own"),
        ("none.keras", "no file 'none.keras'"),
    ]:
        with pytest.raises(OptionError, match=message):
            zoo.build(name)


def test_saved_models_and_builders_are_networks_too(tmp_path):
    small(8 * 2).save(tmp_path / "m.keras")
    assert zoo.build(str(tmp_path / "m.keras")).input_shape == (None, 16, 16, 3)
    assert zoo.build("tfgc.zoo.cnn:sample_cnn", 16).input_shape == (None, 16, 16)
    with pytest.raises(OptionError, match="image_size=8 does not apply"):
        zoo.build(str(tmp_path / "m.keras"), 8)


def test_the_child_measures_what_the_case_says():
    cases = case_choice.plan_cases(small, 8, ["uniform:2"], steps=1)
    keras.utils.clear_session()  # names of layers as in a process of its own
    plans = worker.done(PredictionJob(tuple(cases)))
    keras.utils.clear_session()
    found = worker.done(dataclasses.replace(cases[2], plan=plans.of(cases[2]).plan))
    assert found["detail"] == "2 segments"
    assert len(found["losses"]) == 2


def two_precisions():
    """Its heads answer in float16 and float32, and it has a penalty in float32."""
    inputs = keras.Input((8,))
    x = keras.layers.Dense(8, dtype="mixed_float16", kernel_regularizer="l2")(inputs)
    heads = [keras.layers.Dense(4, dtype=dtype)(x) for dtype in ("mixed_float16", "float32")]
    return keras.Model(inputs, heads)


def class_beside_scores():
    """One of its outputs is an integer, which no squared error trains."""
    inputs = keras.Input((8,))
    scores = keras.layers.Dense(4)(inputs)
    return keras.Model(inputs, [keras.ops.argmax(scores, -1), scores])


@pytest.mark.parametrize("build", [two_precisions, class_beside_scores])
def test_models_with_outputs_of_several_dtypes_are_measured(build):
    (case, *_) = case_choice.plan_cases(build, 4, steps=1, modes="graph")
    before, after = worker.done(case)["losses"]
    assert after < before


def class_alone():
    inputs = keras.Input((8,))
    return keras.Model(inputs, keras.ops.argmax(keras.layers.Dense(4)(inputs), -1))


def test_a_model_without_an_output_to_train_is_refused_with_the_reason():
    (case, *_) = case_choice.plan_cases(class_alone, 4)
    with pytest.raises(tfgc.TfgcError, match="no output of floating-point numbers"):
        worker.done(case)


def ordered():
    """Inputs in an order that is not that of their names, by which TensorFlow sorts dicts."""
    inputs = collections.OrderedDict(wide=keras.Input((8,), name="wide"), slim=keras.Input((3,), name="slim"))
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Concatenate()(list(inputs.values()))))


def test_inputs_that_are_an_ordered_dict_get_the_noise_of_their_shape():
    (case, *_) = case_choice.plan_cases(ordered, 4, steps=1)
    assert len(worker.done(case)["losses"]) == 2


def test_modes_that_are_repeated_are_measured_once():
    names = [case.name for case in case_choice.plan_cases(small, 2, ["sqrt"], modes=("graph", "graph"))]
    assert names == ["plain-eager", "plain-graph", "sqrt-graph"]


def test_a_builder_that_cannot_be_sent_to_a_child_is_an_error_with_the_reason():
    lock = threading.Lock()

    def locked():
        with lock:
            return small()

    for call in (lambda: tfgc.compare(locked, 2), lambda: tfgc.max_batch(locked, "8MB", confirm=False)):
        with pytest.raises(tfgc.TfgcError, match=r"'locked' cannot be sent to a child process: TypeError: .*lock"):
            call()
