"""Progress on standard error: a bar in a terminal, else lines, and nothing where it is not wanted."""

import time

import keras
import pytest

import tfgc
from tfgc import _progress


def parts(shown):
    with _progress.bar("net", 2, "cases", shown) as found:
        for name in ("plain", "sqrt"):
            found.start(f"net: {name}")
            found.done("peak 8 MB")


def test_files_and_pipes_get_a_line_for_each_part(capsys):
    parts(True)
    assert capsys.readouterr().err.splitlines() == [
        "tfgc: net: plain: peak 8 MB (1 of 2 cases)",
        "tfgc: net: sqrt: peak 8 MB (2 of 2 cases)",
    ]


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    parts(True)
    shown = capsys.readouterr().err
    assert "2/2 cases" in shown
    assert "left:" in shown
    assert "tfgc: net" not in shown


def test_nothing_is_printed_where_it_is_not_wanted(capsys):
    parts(False)
    with _progress.patient("planning 'net'", False):
        time.sleep(0.01)
    assert not capsys.readouterr().err


def test_planning_that_takes_long_says_so(capsys, monkeypatch):
    layers = [keras.layers.Dense(8) for _ in range(3)]
    model = keras.Sequential([keras.Input((8,)), *layers], name="net")
    tfgc.plan(model, 4)
    assert not capsys.readouterr().err
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    tfgc.plan(model, 4)
    assert capsys.readouterr().err == "tfgc: planning 'net' ...\n"
    tfgc.plan(model, 4, verbose=0)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("call", [tfgc.compare, tfgc.max_batch, lambda build, **kwargs: tfgc.plan(build(), **kwargs)])
def test_verbose_is_0_or_1(call):
    def build():
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])

    arguments = {tfgc.compare: {"batch_size": 2}, tfgc.max_batch: {"budget": "1GB"}}.get(call, {})
    with pytest.raises(tfgc.OptionError, match="verbose=2: must be 0 or 1"):
        call(build, verbose=2, **arguments)
