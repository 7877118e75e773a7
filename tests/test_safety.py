"""What is given to tfgc is data: nothing in a file or a name is run, obeyed by a terminal, or taken for markup."""

import ast
import html.parser
import io
import json
import pathlib
import pickle
import re
import sys
import zipfile

import keras
import matplotlib
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from tfgc import TfgcError, _progress
from tfgc.__main__ import main
from tfgc._cli.group import cli
from tfgc._core import plan as plans
from tfgc._records import results_json
from tfgc._records.front import BudgetChoice, FrontPoint, FrontRecord
from tfgc._records.measurement import Measurement, Results, Study
from tfgc._records.predicted import Predicted, SegmentSummary
from tfgc._records.table import TextTable
from tfgc._report import command_tables, html_page, plots, svg
from tfgc._report import markdown as markdown_tables

PACKAGE = pathlib.Path(html_page.__file__).parent.parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# Jobs and replies of child processes, over pipes and private folders, and a copy of a random state in memory.
PICKLES = {"_measure/process.py", "_measure/worker.py", "_framework/python_random.py"}
# These import by a name: of a module of tfgc that was listed, or of one that the user wrote.
IMPORTERS = {"__init__.py", "_cli/group.py", "_user_modules.py",
             "strategies/__init__.py", "zoo/__init__.py"}  # fmt: skip
# A script of tfgc that a child process runs; and the caller's own model on its way to a child, no file of others.
OWN = {
    ("_child_process.py", "runpy"), ("_measure/shipped.py", "cloudpickle"), ("_measure/shipped.py", "safe_mode"),
}  # fmt: skip
RUNNERS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
CALLS = {"import_module", "enable_unsafe_deserialization"}
READERS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "joblib", "runpy", "code"}


def uses(path):
    """What a module holds that could run what it reads."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RUNNERS:
            yield node.func.id
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in READERS)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in READERS:
            yield node.module
        if isinstance(node, ast.Attribute) and node.attr in CALLS:
            yield node.attr
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.system", "os.popen"):
            yield node.attr
        if isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle", "safe_mode"):
            yield node.arg


def test_nothing_in_the_package_runs_what_it_reads():
    found = {(path.relative_to(PACKAGE).as_posix(), what) for path in MODULES for what in uses(path)}
    pickles = {(path, what) for path in PICKLES for what in ("pickle", "cloudpickle")}
    assert found <= pickles | {(path, "import_module") for path in IMPORTERS} | OWN


class Payload:
    """What a pickle, or code in a text, does when it is run: it makes a file."""

    def __init__(self, path):
        self.path, self.code = path, f"open({str(path)!r}, 'w')"

    def __reduce__(self):
        return eval, (self.code,)


@pytest.fixture
def payload(tmp_path, monkeypatch):
    """The test runs in a folder where nothing may make the payload's file, nor may any file there run."""
    monkeypatch.chdir(tmp_path)
    made = Payload(tmp_path / "pwned")
    for name in ("tfgc.py", "sitecustomize.py", "conftest.py", "evil.py", "matplotlib.py"):
        (tmp_path / name).write_text(made.code)
    for name in ("tfgc.toml", "tfgc.json", ".tfgc", "setup.cfg", "pyproject.toml"):
        (tmp_path / name).write_text(f"[tool.tfgc]\nstrategy = 'evil:{made.code}'\n")
    yield made
    assert not made.path.exists()


def run(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)


def saved(path, *layers):
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="dense"), *layers]).save(path)
    return path


def edited(path, change):
    """A saved model, the first layer of whose configuration is changed."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    data = json.loads(members["config.json"])
    change(data["config"]["layers"][1])
    with zipfile.ZipFile(path, "w") as file:
        for name, contents in {**members, "config.json": json.dumps(data)}.items():
            file.writestr(name, contents)
    return path


@pytest.mark.parametrize("kind", ["pickle", "code", "python"])
def test_code_in_place_of_a_plan_or_of_results_is_not_run(kind, payload, tmp_path):
    code = f"__import__('os').system('touch {payload.path}')"
    contents = {
        "pickle": pickle.dumps(payload),
        "code": json.dumps({"format": code, "version": 1, "segments": code}).encode(),
        "python": code.encode(),
    }[kind]
    (tmp_path / "file.json").write_bytes(contents)
    for read in (plans.Plan.load, results_json.read):
        with pytest.raises(TfgcError):
            read(tmp_path / "file.json")


def test_a_plan_and_results_name_code_that_is_not_run(payload, tmp_path):
    """The strategy of a plan and the names in results are words."""
    assert run("plan", saved("m.keras"), "--batch-size", "2", "-o", "plan.json").exit_code == 0
    data = json.loads((tmp_path / "plan.json").read_text())
    data.update(strategy="evil:run", options={"build": "evil:run", "key": payload.code})
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert run("explain", "m.keras", "--batch-size", "2", "--plan", "plan.json").exit_code == 0
    record = Measurement("evil:run", "evil:run", "graph", 2, peak_bytes=3, device=payload.code)
    results = Results((Study("evil:run", 2, (record,)),), payload.code)
    (tmp_path / "results.json").write_text(results_json.to_json(results))
    assert run("report", "results.json", "-o", "out.md").exit_code == 0


def test_code_in_a_saved_model_is_refused_with_the_way_out(payload):
    code = eval(f"lambda x: ({payload.code}, x)[1]")
    path = saved("m.keras", keras.layers.Lambda(code, output_shape=(8,)))
    payload.path.unlink(missing_ok=True)  # building it may run it
    edited(path, lambda layer: None)
    commands = (["plan"], ["explain"], ["verify"], ["sweep"])
    for command in commands:
        with pytest.raises(TfgcError, match=r"^'m.keras' cannot be loaded: ") as error:
            run(*command, path, "--batch-size", "2")
        assert "Lambda" in str(error.value)
        assert str(error.value).endswith("trust it, name a function that loads it, as in my_module:load")
        assert "\n" not in str(error.value)


def test_code_in_a_saved_model_runs_where_the_user_asks_for_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    saved("m.keras", keras.layers.Lambda(lambda x: 2 * x, output_shape=(8,)))
    (tmp_path / "trusted.py").write_text(
        "import keras\ndef load():\n    return keras.models.load_model('m.keras', safe_mode=False)"
    )
    assert run("plan", "trusted:load", "--batch-size", "2").exit_code == 0


@pytest.mark.parametrize("module", ["evil", "os", "builtins", "tfgc", "keras.src.utils.file_utils"])
def test_a_saved_model_imports_no_module_that_it_names(module, payload):
    path = saved("m.keras")
    edited(path, lambda layer: layer.update(module=module, class_name="system", registered_name="system"))
    with pytest.raises(TfgcError, match=r"^'m.keras' cannot be loaded: .*system.*my_module:load$"):
        run("plan", path, "--batch-size", "2")


# Names that are markup, formulas, commands to a terminal, or reorder what stands beside them.
NAMES = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a|b|c", "`code`", "=cmd('calc')|'!A0", "$\\input{x}$",
    "![x](https://evil.example/x.png)", "[here](javascript:alert(1))", "**x** ~~y~~ _z_", "# x", "- x", "1. x", "> x",
    "&lt;b&gt;", "-->", "]]>", "\" onload='alert(1)", "{{ 7 * 7 }}", "{% raw %}", "\x1b[2J\x1b]0;x\x07\x9b31m",
    "\u202egpj.exe\u202c", "</svg><script>", "</title></style>", "[red]x[/b]", "${jndi:x}", "%s%n{0}", "\u4e2d\nx",
)  # fmt: skip
SIGNS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def named(name):
    """Results in which everything that someone can name has that name."""
    part = SegmentSummary(name, name, 3, "keep", 1, 2)
    point = FrontPoint(name, 10, 11, 9, 0.5, 0.1, 3, False)
    front = FrontRecord(name, 2, "flop", 1, 5, name, (point, point), (point,), (BudgetChoice(name, 9, None, 10),))
    foretold = Predicted(5, 0.1, "flop", 3, name, 9)
    more = {"device": name, "machine": {name: name}, "parts": (part,), "predicted": foretold, "losses": (1.0,)}
    records = tuple(
        Measurement(
            name, name, "graph", 2, peak_bytes=3, step_seconds=1.0, timeline=((0.0, 1), (1.0, 3)), **kind, **more
        )
        for kind in ({}, {"status": "failed", "detail": name})
    )
    return Results((Study(name, 2, records, front), Study(name, 3, records[:1])), name)


class Tags(html.parser.HTMLParser):
    """The tags and attributes of a page, and the texts between them."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts = set(), []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags |= {(tag, name) for name, _ in attributes} | {(tag, "")}

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.gate
@pytest.mark.parametrize("kind", ["html", "md", "png"])
def test_names_are_text_in_reports(kind):
    plain = html_page.render(named("name"), f".{kind}")
    for name in NAMES if kind == "md" else ["".join(NAMES)]:
        made = html_page.render(named(name), f".{kind}")
        if kind == "png":
            assert made.startswith(b"\x89PNG")
            continue
        if kind == "md":
            assert not SIGNS.search(made), name
            parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
            assert Tags(parser.render(made)).tags == Tags(parser.render(plain)).tags, name
            continue
        assert Tags(made).tags == Tags(plain).tags, name
        assert " ".join(name.split()) in " ".join(" ".join(Tags(made).texts).split())


def test_signs_of_markdown_are_escaped():
    """Those that the parser of the test above does not know, too."""
    for text in ("~~x~~", "`x`", "$x$", "[x]", "# x", "+ x", "> x", "12. x", "<x>", "~x"):
        escaped = markdown_tables.escape(text)
        assert re.match(r"\\|&lt;|12\\", escaped), escaped


def shown(table):
    file = io.StringIO()
    command_tables.print_table(table, file)
    return file.getvalue()


def test_a_terminal_obeys_no_name(tmp_path, capsys):
    for name in NAMES:
        table = TextTable(name, (name, name), [(name, name)], name)
        assert not SIGNS.search(shown(table))
        with _progress.bar(name, 2, "cases") as cases:
            cases.start(name)
    assert not SIGNS.search(re.sub("\x1b\\[[?\\d;]*[hlmAK]|\r", "", capsys.readouterr().err))
    assert "\\x1b[2J" in shown(TextTable("", ("a",), [(name,) for name in NAMES]))


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_terminal_obeys_no_name_of_a_layer(command, monkeypatch, tmp_path, capsys):
    """TensorFlow takes no such name in a graph, and says so."""
    monkeypatch.chdir(tmp_path)
    path = saved("m.keras", keras.layers.Dense(4, name="\x1b[2Jx\u202e"))
    monkeypatch.setattr(sys, "argv", ["tfgc", command, path, "--batch-size", "2"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert "\\x1b[2Jx" in printed
    assert not SIGNS.search(printed)


def test_figures_do_not_depend_on_settings_that_lie_in_the_folder():
    """matplotlib reads a matplotlibrc in the current folder, which may have LaTeX set the names."""
    plot = plots.of_study(named("x_1$").studies[0])[0]
    usual = svg.svg(plot, "p")
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "svg.fonttype": "path"}):
        assert svg.svg(plot, "p") == usual
