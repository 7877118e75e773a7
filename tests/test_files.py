"""Files: written whole or not at all, and never over an input or twice to one."""

import contextlib
import itertools
import os
import pathlib
import resource
import stat
import subprocess
import sys
import threading

import click
import pytest
from click.testing import CliRunner

from tfgc import _files
from tfgc._cli import files
from tfgc._cli.group import cli
from tfgc._errors import TfgcError
from tfgc._records import results_json
from tfgc._records.front import FrontPoint, FrontRecord
from tfgc._records.measurement import Measurement, Results, Study
from tfgc._report import plots, svg

OLD, NEW = "the old one\n", "the new one, which is longer\n" * 100


@pytest.fixture
def path(tmp_path):
    """A file that is alone in its folder."""
    (tmp_path / "out").mkdir()
    file = tmp_path / "out" / "file"
    file.write_text(OLD)
    return file


@contextlib.contextmanager
def full_disk(room=64):
    """No file can grow beyond `room` bytes: what is written breaks off there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def only(path):
    """The text of a file that is alone in its folder."""
    assert os.listdir(path.parent) == [path.name]
    return path.read_text()


def test_what_is_written_takes_the_place_of_what_was_there(path):
    _files.write(path, NEW)
    assert only(path) == NEW
    _files.write(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(path):
    with full_disk(), pytest.raises(TfgcError) as error:
        _files.write(path, NEW)
    assert str(error.value) == f"cannot write {str(path)!r}: File too large"
    assert only(path) == OLD


def test_an_interrupt_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _files.write(path, NEW)
    assert only(path) == OLD


def test_permissions_are_those_of_the_old_file_or_the_usual_ones(path):
    def mode():
        return stat.S_IMODE(path.stat().st_mode)

    path.chmod(0o640)
    _files.write(path, NEW)
    assert mode() == 0o640
    path.unlink()
    before = os.umask(0o027)
    try:
        _files.write(path, NEW)
    finally:
        os.umask(before)
    assert mode() == 0o640


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(path, there):
    link = path.parent.parent / "link"
    link.symlink_to("out/file")
    if not there:
        path.unlink()
    _files.check_writable(link)
    assert path.exists() == there
    _files.write(link, NEW)
    assert link.is_symlink()
    assert only(path) == NEW


def test_a_pipe_is_written_to(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    _files.check_writable(pipe)  # does not wait for a reader
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    _files.write(pipe, NEW)
    reader.join(10)
    assert read == [NEW]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_devices_are_written_to():
    for device in ("/dev/null", "/dev/full"):
        _files.check_writable(device)
    _files.write("/dev/null", NEW)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(TfgcError, match="cannot write '/dev/full': No space left on device"):
        _files.write("/dev/full", NEW)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.parametrize("piped", [True, False])
def test_the_standard_output_is_written_to_in_turn(path, name, piped):
    if name == "link":
        name = str(path.parent.parent / "link")
        os.symlink("/dev/stdout", name)
    code = (
        f"from tfgc import _files; print('before'); _files.check_writable({name!r}); _files.write({name!r}, 'told\\n')"
    )
    command = [sys.executable, "-c", code + "; print('after')"]
    if piped:
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "before\ntold\nafter\n"
        return
    with open(path, "a") as file:
        subprocess.run(command, check=True, stdout=file)
    assert only(path) == OLD + "before\ntold\nafter\n"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (".", "Is a directory"),
        ("none/file", "No such file or directory"),
        ("file/file", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_written_is_an_error_before_and_after(path, name, why):
    wrong = f"{path.parent}/{name}"
    for attempt in (lambda: _files.check_writable(wrong), lambda: _files.write(wrong, NEW)):
        with pytest.raises(TfgcError) as error:
            attempt()
        assert str(error.value) == f"cannot write {wrong!r}: {why}"
    assert only(path) == OLD


def test_a_file_that_may_not_be_written_is_not_replaced(path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # which the superuser always may
    for attempt in (lambda: _files.check_writable(path), lambda: _files.write(path, NEW)):
        with pytest.raises(TfgcError, match="Permission denied"):
            attempt()
    assert only(path) == OLD


def test_a_check_leaves_nothing_behind(path):
    _files.check_writable(path)
    assert only(path) == OLD
    path.unlink()
    _files.check_writable(path)
    assert os.listdir(path.parent) == []


SPELLINGS = ["r.json", "./r.json", "sub/../r.json", "link.json", "linked/r.json", "{here}/r.json", "hard.json"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, in which all of `SPELLINGS` are one file."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("sub")
    pathlib.Path("r.json").write_text(results_json.to_json(Results((STUDY,))))
    os.symlink("r.json", "link.json")
    os.symlink(".", "linked")
    os.link("r.json", "hard.json")
    return tmp_path


STUDY = Study("net", 8, (Measurement("net", "plain", "graph", 8, peak_bytes=800, step_seconds=1.0, losses=(1.0,)),))


def test_one_file_by_any_spelling(here):
    for first, second in itertools.product(SPELLINGS, SPELLINGS):
        assert _files.same(first.format(here=here), second.format(here=here))
    assert _files.same("none.json", "./sub/../none.json")
    os.symlink("none.json", "dangling.json")
    assert _files.same("none.json", "dangling.json")
    assert not _files.same("none.json", "r.json")
    assert not _files.same("sub", "linked/sub")  # no file
    assert not _files.same("/dev/null", "/dev/null")


# Each command with what it cannot do without, and a value for each option that names a file
NEEDS = {
    name: ["net.keras", "--batch-size", "2"] for name in ("plan", "explain", "sweep", "compare", "compile", "verify")
}
NEEDS |= {"max-batch": ["net.keras", "--budget", "1GB"], "report": ["r.json"]}
ALL = cli.commands
OUTPUTS = {
    name: [o.opts[0] for o in command.params if isinstance(o.type, files.Output)] for name, command in ALL.items()
}
INPUTS = {
    name: [o.opts[0] for o in command.params if isinstance(o.type, files.Input) and isinstance(o, click.Option)]
    for name, command in ALL.items()
}


def conflict(name, *arguments):
    """What a command prints; it must not have begun."""

    def begun(**_):
        raise AssertionError("the command has begun")

    command = ALL[name]
    callback, command.callback = command.callback, begun
    try:
        done = CliRunner().invoke(cli, [name, *NEEDS.get(name, []), *map(str, arguments)])
    finally:
        command.callback = callback
    assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
    assert done.output.count("\n") == 1
    return done.output.strip()


def test_every_path_of_every_command_says_what_it_is_for():
    for name, command in ALL.items():
        assert isinstance(command, files.Command), name
        assert "--json" in OUTPUTS[name]
        for param in command.params:
            if isinstance(param.type, click.Path):
                assert isinstance(param.type, (files.Input, files.Output)), (name, param.name)
            assert (param.name == "name") == isinstance(param.type, files.Network), (name, param.name)
    assert {name for name, flags in OUTPUTS.items() if len(flags) > 1} == {
        "compare", "max-batch", "plan", "report", "sweep",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "first", "second"), [(n, *pair) for n in ALL for pair in itertools.combinations(OUTPUTS[n], 2)]
)
def test_no_file_is_written_twice(name, first, second, here):
    os.symlink("new.json", "new.png")
    path = {"-o": "new.json", "--json": "./sub/../new.json", "--plot": "new.png"}
    told = conflict(name, first, path[first], second, path[second])
    assert told in {
        f"tfgc: {a} {path[a]!r}: {b} {path[b]!r} writes that file; name another one"
        for a, b in ((first, second), (second, first))
    }


@pytest.mark.parametrize(("name", "write", "read"), [(n, w, r) for n in ALL for w in OUTPUTS[n] for r in INPUTS[n]])
def test_no_option_writes_over_what_another_reads(name, write, read, here):
    os.symlink("r.json", "r.png")
    path = "r.png" if write == "--plot" else "link.json"
    assert conflict(name, read, "./r.json", write, path) == (
        f"tfgc: {write} {path!r}: {read} './r.json' reads that file; name another one"
    )


@pytest.mark.parametrize(
    ("name", "write"), [(n, w) for n in ALL for w in OUTPUTS[n] if "net.keras" in NEEDS.get(n, [])]
)
def test_no_option_writes_over_the_model(name, write, here):
    path = {"-o": "./net.keras", "--json": "net.json", "--plot": "net.png"}[write]
    pathlib.Path("net.keras").write_text("")
    if write != "-o":
        os.symlink("net.keras", path)
    assert conflict(name, write, path) == (
        f"tfgc: {write} {path!r}: NAME 'net.keras' reads that file; name another one"
    )


@pytest.mark.parametrize(
    ("module", "file"), [("nets", "nets.py"), ("pack.nets", "pack/nets.py"), ("pack", "pack/__init__.py")]
)
def test_the_module_of_a_builder_is_not_written_over(module, file, here, monkeypatch):
    monkeypatch.setitem(NEEDS, "plan", [f"{module}:build", "--batch-size", "2"])
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
    pathlib.Path(file).write_text("")
    assert conflict("plan", "-o", file) == (
        f"tfgc: -o {file!r}: NAME '{module}:build' reads that file; name another one"
    )


@pytest.mark.parametrize("spelled", SPELLINGS)
@pytest.mark.parametrize("flag", ["-o", "--json"])
def test_a_report_does_not_replace_its_results(flag, spelled, here):
    path = spelled.format(here=here)
    assert conflict("report", flag, path) == (
        f"tfgc: {flag} {path!r}: FILES 'r.json' reads that file; name another one"
    )


def test_a_report_that_is_there_is_replaced_only_if_it_is_named(here):
    assert invoke("report", "r.json").output == "written to report.html\n"
    pathlib.Path("report.html").write_text(OLD)
    with pytest.raises(TfgcError, match=r"report\.html is there already: .* name it: -o report\.html"):
        invoke("report", "r.json")
    assert pathlib.Path("report.html").read_text() == OLD
    assert invoke("report", "r.json", "-o", "report.html").output == "written to report.html\n"
    assert pathlib.Path("report.html").read_text() != OLD


def invoke(*arguments):
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)


def test_a_report_is_written_with_the_joined_results_beside_it(here):
    assert invoke("report", "r.json", "--json", "new.json", "-o", "new.md").output == "written to new.md\n"
    assert results_json.read("new.json").studies == (STUDY,)
    assert "plain-graph" in pathlib.Path("new.md").read_text()
    assert sorted(os.listdir()) == ["hard.json", "link.json", "linked", "new.json", "new.md", "r.json", "sub"]


def test_results_that_are_printed_need_no_place_for_a_report(here):
    os.mkdir("report.html")
    assert results_json.from_json(invoke("report", "r.json", "--json").stdout).studies == (STUDY,)


@pytest.mark.parametrize("kind", [".md", ".html", ".png"])
def test_a_report_on_a_full_disk_leaves_the_old_one(kind, here):
    old = pathlib.Path(f"page{kind}")
    old.write_text(OLD)
    timeline = Study("net", 8, (Measurement("net", "plain", "graph", 8, peak_bytes=8, timeline=((0.0, 1), (1.0, 2))),))
    pathlib.Path("r.json").write_text(results_json.to_json(Results((timeline,))))
    before = sorted(os.listdir())
    with full_disk(), pytest.raises(TfgcError, match=f"cannot write 'page{kind}': File too large"):
        invoke("report", "r.json", "-o", old)
    assert old.read_text() == OLD
    assert sorted(os.listdir()) == before


FRONT = FrontRecord("net", 8, "s", 10, 20, "conv", (FrontPoint("least", 10, 20, 30, 0.5, 0.25, 4, True),))


@pytest.mark.parametrize(
    "written",
    [
        lambda path: svg.write_png(plots.front(Study("net", 8, front=FRONT)), path),
        lambda path: invoke("zoo", "--json", f"{path}.json"),
    ],
    ids=["plot", "json"],
)
def test_everything_else_that_is_written_survives_a_full_disk(written, tmp_path):
    path = tmp_path / "file"
    with full_disk(), pytest.raises(TfgcError, match=r"cannot write '.*file(\.json)?': File too large"):
        written(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "r.json", "-o", "r.txt"], "'r.txt': a report is .html (a page), .md (Markdown) or .png (pictures)"),
        (["report", "r.json", "-o", "sub"], "cannot write 'sub': Is a directory"),
        (["report", "r.json", "-o", "none/r.md"], "cannot write 'none/r.md': No such file or directory"),
        (["report", "sub"], "cannot read 'sub': Is a directory"),
        (["report", "none.json"], "cannot read 'none.json': No such file or directory"),
        (["report", "cut.json"], "'cut.json': not a results file, or a damaged one: Expecting value: line 2 column 1"),
        (["report", "{}.json"], "'{}.json': not a results file, or a damaged one: its format is not 'tfgc-"),
        (["report", "picture.json"], "cannot read 'picture.json': 'utf-8' codec can't decode byte"),
        (["max-batch", "unet", "--budget", "1GB", "--strategy", "keep_all", "-o", "p.json"],
         "-o 'p.json': keep_all recomputes nothing and has no plan to write"),
    ],
)  # fmt: skip
def test_mistakes_with_files_give_one_line(arguments, words, here):
    text = pathlib.Path("r.json").read_text()
    pathlib.Path("cut.json").write_text(text[: text.index("\n") + 1])
    pathlib.Path("{}.json").write_text("{}")
    pathlib.Path("picture.json").write_bytes(b"\x89PNG\xff")
    with pytest.raises(TfgcError) as error:
        invoke(*arguments)
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)


def test_a_full_disk_behind_the_output_gives_one_line():
    for arguments in (["zoo"], ["zoo", "--json"], ["--version"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "tfgc", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert (done.returncode, done.stderr) == (1, "tfgc: cannot write the output: No space left on device\n")
