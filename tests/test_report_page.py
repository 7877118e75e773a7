"""Reports of hand-made records: what they hold, how mistakes are answered, and how a browser shows them."""

import dataclasses
import html.parser
import io
import os
import pathlib
import re
import shutil
import sys

import matplotlib.figure
import pytest
from click.testing import CliRunner
from PIL import Image

from tfgc import TfgcError
from tfgc._cli.commands.report import command
from tfgc._errors import OptionError
from tfgc._records import results_json
from tfgc._records.front import BudgetChoice, FrontPoint, FrontRecord
from tfgc._records.measurement import Measurement, Results, Study
from tfgc._records.predicted import Predicted, SegmentSummary
from tfgc._report import command_tables, fronts, html_page, plots, study_summary, study_tables

MB = 10**6
KEPT = SegmentSummary("stem_conv", "stem_relu", 4, "keep", 310 * MB, 310 * MB)
PARTS = (
    KEPT,
    SegmentSummary("conv2_block1_1_conv", "conv2_block3_out", 32, "recompute", 51 * MB, 640 * MB),
    SegmentSummary(
        "conv3_block1_1_conv", "conv5_block3_2_relu_before_the_last", 118, "recompute", 26 * MB, 900 * MB,
        (
            SegmentSummary("conv3_block1_1_conv", "conv4_block1_out", 50, "recompute", 13 * MB, 500 * MB,
                 (SegmentSummary("conv3_block1_1_conv", "conv3_block2_out", 25, "keep", 250 * MB, 250 * MB),
                  SegmentSummary("conv3_block3_1_conv", "conv4_block1_out", 25, "keep", 250 * MB, 250 * MB))),
            SegmentSummary("conv4_block2_1_conv", "conv5_block3_out", 68, "keep", 400 * MB, 400 * MB),
        ),
    ),
    SegmentSummary("avg_pool", "predictions", 22, "keep", 1 * MB, 1 * MB),
)  # fmt: skip


def course(peak, seconds):
    """Memory that rises through the forward pass and falls through the backward."""
    return tuple((seconds * i / 40, peak * min(i, 40 - i) // 20) for i in range(41))


def case(name, mode, peak, seconds, **more):
    losses = (1.0121976137161255, 1.0121594667434692, 1.0121296644210815)
    figures = {"process_peak_bytes": peak + 900 * MB, "resident_bytes": 117 * MB, "device": "CPU:0"}
    figures |= {"machine": {"processors": 2, "tensorflow": "2.21.0", "keras": "3.15.1"}, "losses": losses}
    figures |= {"peak_bytes": peak, "step_seconds": seconds, "timeline": course(peak, seconds), **more}
    return Measurement("resnet50", name, mode, 16, **figures)


def foretold(peak, overhead):
    return Predicted(peak, overhead, "flop", 310 * MB, "conv2_block1_1_bn", 1_400 * MB)


RECORDS = (
    case("plain", "eager", 3_871 * MB, 2.44),
    case("plain", "graph", 1_428 * MB, 1.69, predicted=foretold(1_410 * MB, 0.0)),
    case("sqrt(6)", "compiled", 724 * MB, 2.09, parts=PARTS[:2], predicted=foretold(700 * MB, 0.31)),
    case("sqrt(6)", "graph", 731 * MB, 2.11, parts=PARTS[:2], predicted=foretold(700 * MB, 0.31)),
    case("optimal", "graph", 446 * MB, 2.18, parts=PARTS, predicted=foretold(480 * MB, 0.29)),
    case("uniform(3)", "graph", 822 * MB, 1.99, losses=(1.0121976, 1.2, 1.3)),
    Measurement("resnet50", "uniform(12)", "graph", 16, "oom", "killed"),
    Measurement(
        "resnet50", "manual", "compiled", 16, "failed", "OptionError: no node 'conv_x'; did you mean 'conv_1'?"
    ),
)
POINTS = (
    FrontPoint("least", 760 * MB, 800 * MB, 450 * MB, 0.72, 0.33, 9, True),
    FrontPoint("", 900 * MB, 930 * MB, 600 * MB, 0.62, 0.21, 5, False),
    FrontPoint("", 1_250 * MB, 1_290 * MB, 950 * MB, 0.36, 0.08, 3, False),
    FrontPoint("plain", 1_800 * MB, 1_880 * MB, 1_500 * MB, 0.0, 0.0, 1, False),
)
CHOICES = (BudgetChoice("60%", 1_080 * MB, POINTS[1]), BudgetChoice("100MB", 100 * MB, None, 800 * MB))
FRONT = FrontRecord(
    "resnet50", 16, "flop", 307 * MB, 700 * MB, "conv2_block1_1_bn", POINTS,
    (FrontPoint("sqrt.json", 980 * MB, 1_010 * MB, 700 * MB, 0.56, 0.31, 6, False),), CHOICES,
)  # fmt: skip
STUDY = Study("resnet50", 16, RECORDS, FRONT)
SECOND = Study(
    "a_network_with_an_uncommonly_long_name_that_nobody_would_choose(3, 20)", 8,
    (case("plain", "graph", 90 * MB, 0.2),
     case("budget", "graph", 40 * MB, 0.25, predicted=foretold(41 * MB, 0.2), parts=tuple(
         dataclasses.replace(KEPT, first=f"conv{i}", last=f"relu{i}", mode="recompute" if i % 2 else "keep")
         for i in range(40)))),
)  # fmt: skip
ALL = Results((STUDY, SECOND), "tfgc compare resnet50 --batch-size 16 --strategy sqrt:6,optimal")
OLD = sorted((pathlib.Path(__file__).parent.parent / "scripts" / "results").glob("*_b*.json"))
STUDIES = {
    "nothing": (),
    "an empty study": (Study("", 0),),
    "a front alone": (Study("resnet50", 16, (), FRONT),),
    "a front of one point without choices": (
        Study("n", 1, (), dataclasses.replace(FRONT, points=POINTS[:1], others=(), choices=())),
    ),
    "plain cases alone": (Study("resnet50", 16, RECORDS[:2]),),
    "all failed": (Study("resnet50", 16, RECORDS[-2:]),),
    "no plain case": (Study("resnet50", 16, RECORDS[2:5]),),
    "measured without figures": (Study("n", 1, (Measurement("n", "sqrt", "graph", 1),)),),
    "zeros": (
        Study("n", 1, (case("plain", "eager", 0, 0.0, timeline=((0.0, 0),)), case("sqrt", "compiled", 0, 0.0))),
    ),
    "a plan without bytes": (
        Study("n", 1, (case("sqrt", "graph", 5, 1.0, parts=(SegmentSummary("a", "b", 0, "keep"),)),)),
    ),
    "losses that are no numbers": (
        Study("n", 1, (case("plain", "graph", 5, 1.0), case("sqrt", "graph", 4, 1.0, losses=(float("nan"),)))),
    ),
    "many cases": (Study("n", 1, tuple(case(f"uniform({i})", "graph", 10**9 // i, 1.0) for i in range(1, 20))),),
}  # fmt: skip
HOSTILE = "<script>alert('$x_1$')</script>|&*_`\n\u4e2d"
UNIT = r"([-+]?[\d.,]+ (B|kB|MB|GB|s|ms|us|%)|baseline|infeasible|ok|oom|failed|)"
COUNTED = (
    "segments",
    "nodes",
    "nested",
    "mode",
    "first ... last node",
    "floor set by",
    "least peak",
    "result",
)
VOID = {"meta", "br", "img", "hr", "input", "link"}


class Reader(html.parser.HTMLParser):
    """Checks that elements are closed in order, ids are unique, and references lead somewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.wanted, self.seen, self.words = [], [], set(), [], []
        self.feed(text)
        self.close()
        assert not self.open
        assert len(self.ids) == len(set(self.ids))
        assert self.wanted <= set(self.ids)

    def handle_starttag(self, tag, attrs):
        self.note(tag, dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.note(tag, dict(attrs))

    def note(self, tag, attrs):
        self.seen.append((tag, attrs))
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.wanted |= set(attrs.get("aria-labelledby", "").split())
        for value in attrs.values():
            self.wanted |= set(re.findall(r"url\(#([^)]*)\)", value or ""))
            self.wanted |= {value[1:]} if (value or "").startswith("#") else set()
            assert not re.search(r"https?://(?!www\.w3\.org)", value or ""), value

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)


@pytest.fixture(scope="module")
def page():
    return html_page.render(ALL)


def test_a_page_is_whole_well_formed_and_runs_nothing(page):
    read = Reader(page)
    tags = [tag for tag, _ in read.seen]
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert ("html", {"lang": "en"}) in read.seen
    assert tags.count("svg") == 7
    assert all(attrs["role"] == "img" for tag, attrs in read.seen if tag == "svg")
    assert all("scope" in attrs for tag, attrs in read.seen if tag == "th")
    assert "prefers-color-scheme: dark" in page


def test_a_page_says_what_came_out(page):
    words = " ".join(" ".join(Reader(page).words).replace("\u00a0", " ").split())
    for told in (
        "The least is needed by optimal-graph: 563 MB. Against plain-graph (1.54 GB): saved 63.6 %, overhead +29 %. "
        "Against plain-eager (3.99 GB): saved 85.9 %, overhead -11 %.",
        "uniform(12)-graph oom: killed", "no node 'conv_x'", "infeasible",
        "conv3_block1_1_conv ... conv4_block1_out",
        "The smallest budget that works is 800,000,000 bytes.", "tfgc compare resnet50", "tensorflow 2.21.0", "CPU:0",
    ):  # fmt: skip
        assert told in words, told
    for word in ("needs, peak", "saved", "overhead", "plain-eager", "plain-graph", "floor", "units"):
        assert word in dict(study_summary.GLOSSARY)


def test_a_baseline_that_ran_out_of_memory_is_reported():
    plain = dataclasses.replace(RECORDS[0], status="oom", peak_bytes=None, step_seconds=None, timeline=())
    study = Study("n", 1, (plain, RECORDS[4]))
    assert study_summary.summary(study) == "The least is needed by optimal-graph: 563 MB."
    assert study_summary.problems(study) == [("plain-eager", "oom")]


def test_steps_that_xla_compiles_are_compared_with_their_own_plain_step():
    xla = (case("plain", "xla", 1_000 * MB, 1.0), case("sqrt", "xla", 250 * MB, 1.1))
    heads = ("case", "needs", "saved xla", "process", "step", "overhead xla")
    sheet = study_tables.compared(Study("n", 1, xla))
    assert (sheet.heads, list(sheet.rows[1])[2:6:3]) == (heads, ["67.1 %", "+10 %"])
    told = "The least is needed by sqrt-xla: 367 MB. Against plain-xla (1.12 GB): saved 67.1 %, overhead +10 %."
    assert study_summary.summary(Study("n", 1, xla)).startswith(told)
    both = Study("n", 1, (*RECORDS[:2], *xla))
    assert study_summary.summary(both).startswith(told)
    assert len(study_tables.compared(both).heads) == len(heads) + 4
    assert "plain-xla (the step compiled by XLA)" in command_tables.comparison(xla).caption


def test_a_title_counts_networks_and_not_batches():
    batches = [Study("resnet50", batch, RECORDS) for batch in (8, 16, 32)]
    assert html_page._title(batches) == "Memory and time of training resnet50"
    assert html_page._title(batches[:1]) == "Memory and time of training resnet50, batch 8"
    assert html_page._title([*batches, SECOND]) == "Memory and time of training 2 networks"


def test_plain_training_has_a_line_of_its_own_in_each_mode():
    study = Study("n", 1, tuple(case("plain", mode, 100 * MB, 2.0) for mode in ("eager", "graph", "xla")))
    figure = matplotlib.figure.Figure()
    plots.memory(study).draw(figure)
    drawn = {(str(line.get_color()), str(line._dash_pattern)) for line in figure.axes[0].lines}
    assert len(drawn) == 3


def test_tables_of_hand_made_records():
    assert study_tables.compared(STUDY).rows[4] == [
        "optimal-graph", "563 MB", "85.9 %", "63.6 %", "1.35 GB", "2.18 s", "-11 %", "+29 %",
    ]  # fmt: skip
    assert study_tables.compared(STUDY).rows[6] == ["uniform(12)-graph", "oom", *[""] * 6]
    assert study_tables.predicted(STUDY).rows[-1] == [
        "optimal-graph", "597 MB", "563 MB", "+6.0 %", "+29 %", "+29 %", "427 MB", "conv2_block1_1_bn",
    ]  # fmt: skip
    assert study_tables.losses(STUDY).rows[-1][1:] == ["baseline", "baseline", "0", "0", "0", "0.28"]
    assert [row[0] for row in study_tables.plan("x", PARTS).rows] == [
        "1",
        "2",
        "3",
        "3.1",
        "3.1.1",
        "3.1.2",
        "3.2",
        "4",
    ]
    assert [row[0] for row in fronts.rows(STUDY.front)] == [
        "least",
        "bought by 60%",
        "sqrt.json",
        "plan 4",
        "plain",
    ]
    assert study_tables.plans(STUDY)[0][0] == "sqrt(6)-compiled and sqrt(6)-graph"


def test_every_figure_in_a_table_has_its_unit():
    for study in (STUDY, SECOND):
        for sheet in (*study_tables.shown(study), *study_tables.folded(study)):
            if not sheet.title.startswith("Loss"):
                for row in sheet.rows:
                    for head, cell in zip(sheet.heads[1:], row[1:]):
                        assert head in COUNTED or re.fullmatch(UNIT, cell), (head, cell)


def test_every_axis_is_labelled_with_its_unit(page):
    pictures = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    for picture, labels in zip(pictures, [
        ("time in one training step (s)", "allocated (GB)"),
        ("peak of the whole step, weights included (GB)", "overhead (% of flops)"),
        ("place along the network (nodes)", "bytes (MB)"),
        ("place along the network (nodes)", "bytes (MB)"),
        ("time in one training step (s)", "allocated (MB)"),
        ("place along the network (nodes)", "bytes (MB)"),
        ("predicted to need (GB)", "needs (GB)"),
    ], strict=True):  # fmt: skip
        texts = re.findall(r"<text[^>]*>(.*?)</text>|<tspan[^>]*>(.*?)</tspan>", picture, flags=re.DOTALL)
        for label in labels:
            assert any(label in one or label in other for one, other in texts), (label, texts)
        assert "<desc" in picture
        assert not re.search(r"(stroke|fill): #", picture)


def test_colours_of_text_can_be_read_in_both_schemes():
    style = (pathlib.Path(html_page.__file__).parent / "templates" / "report.html.j2").read_text()
    schemes = re.findall(r"(--page:.*?)\}", style, flags=re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): #([0-9a-f]{6})", scheme))
        for name in ("ink", "muted", "bad", *(f"s{i}" for i in range(6))):
            for behind in ("page", "card"):
                assert contrast(colours[name], colours[behind]) >= 4.5, (name, behind)


def contrast(one, other):
    """The contrast of two colours as WCAG 2 counts it."""

    def light(colour):
        shares = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return sum(w * s for w, s in zip((0.2126, 0.7152, 0.0722), linear))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_equal_records_give_equal_bytes(page):
    assert html_page.render(ALL) == page
    small = Results((Study("resnet50", 16, (), FRONT),))
    assert html_page.render(small, ".png") == html_page.render(small, ".png")


@pytest.mark.parametrize("name", STUDIES)
def test_a_report_comes_out_of_whatever_is_there(name):
    results = Results(STUDIES[name])
    Reader(html_page.render(results))
    assert html_page.render(results, ".md").startswith("# ")


@pytest.mark.parametrize("path", OLD, ids=lambda p: p.stem)
def test_a_report_comes_out_of_old_results(path):
    Reader(html_page.render(results_json.read(path)))


def test_names_are_never_markup(page):
    record = case(HOSTILE, "graph", 10 * MB, 1.0, parts=(SegmentSummary(HOSTILE, HOSTILE, 3, "keep", 1, 2),))
    record = dataclasses.replace(record, network=HOSTILE, device=HOSTILE, predicted=foretold(5, 0.1))
    front = dataclasses.replace(FRONT, floor_node=HOSTILE, choices=(BudgetChoice(HOSTILE, 9, None, 10),))
    results = Results((Study(HOSTILE, 2, (record,), front),), HOSTILE)
    read = Reader(html_page.render(results))
    assert "script" not in {tag for tag, _ in read.seen}
    text = html_page.render(results, ".md")
    assert "<script" not in re.sub("`.*?`", "", text)
    assert "\u4e2d" in text
    html_page.render(results, ".png")


def test_a_front_joins_the_measurements_of_the_same_network():
    apart = [
        Results((Study("n", 1, RECORDS),)),
        Results((Study("n", 1, (), FRONT),)),
        Results((Study("n", 2, RECORDS),)),
    ]
    assert [(len(s.records), s.front is not None) for s in study_tables.joined(apart)] == [(8, True), (8, False)]
    assert len(study_tables.joined([apart[0], apart[0]])) == 2


def test_markdown_has_the_tables():
    text = html_page.render(ALL, ".md")
    assert "| optimal-graph | 563 MB | 85.9 % | 63.6 % | 1.35 GB | 2.18 s | -11 % | +29 % |" in text
    assert "The least is needed by optimal-graph" in text
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert min(widths) >= 3


def test_a_picture_is_a_png():
    with Image.open(io.BytesIO(html_page.render(ALL, ".png"))) as image:
        assert image.format == "PNG"
        assert image.size[0] > 800
        assert image.size[1] > 2500
    with pytest.raises(TfgcError, match="nothing to draw"):
        html_page.render(Results(STUDIES["all failed"]), ".png")


def run(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)


@pytest.mark.parametrize("kind", html_page.ENDINGS)
def test_the_command_writes_what_the_ending_says(tmp_path, kind):
    small = Results((SECOND,))
    (tmp_path / "r.json").write_text(results_json.to_json(small))
    result = run(tmp_path / "r.json", "-o", tmp_path / f"out{kind}")
    assert result.exit_code == 0, result.output
    made = html_page.render(small, kind)
    assert (tmp_path / f"out{kind}").read_bytes() == (made if kind == ".png" else made.encode())


def test_the_command_refuses_mistakes_before_it_works(tmp_path, monkeypatch):
    good, newer = tmp_path / "r.json", tmp_path / "newer.json"
    good.write_text(results_json.to_json(ALL))
    newer.write_text(good.read_text().replace('"version": 6', '"version": 9'))
    (tmp_path / "looks_like.html").write_text(good.read_text())
    for arguments, error, words in [
        ((good, "-o", "out.pdf"), OptionError, r"\.html.*\.md.*\.png"),
        ((good, "-o", "out"), OptionError, r"\.html.*\.md.*\.png"),
        ((newer, "-o", tmp_path / "x.html"), TfgcError, "newer.json.*version 9.*upgrade tfgc"),
        ((tmp_path / "none.json", "-o", tmp_path / "x.html"), TfgcError, "cannot read"),
    ]:
        with pytest.raises(error, match=words):
            run(*arguments)
    assert run(tmp_path / "looks_like.html", "-o", tmp_path / "looks_like.html").exit_code == 2
    monkeypatch.setattr(html_page, "render", None)
    with pytest.raises(TfgcError, match="cannot write"):
        run(good, "-o", tmp_path / "no" / "such.html")
    assert results_json.read(tmp_path / "looks_like.html") == ALL
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(("package", "kinds"), [("matplotlib", (".html", ".png")), ("jinja2", (".html",))])
def test_a_missing_package_names_the_extra(package, kinds, tmp_path, monkeypatch):
    (tmp_path / "r.json").write_text(results_json.to_json(ALL))
    for name in {package, *(name for name in sys.modules if name.split(".")[0] == package)}:
        monkeypatch.setitem(sys.modules, name, None)
    for kind in kinds:
        with pytest.raises(TfgcError, match=r'pip install "tfgc\[report\]"'):
            run(tmp_path / "r.json", "-o", tmp_path / f"x{kind}")
        assert not (tmp_path / f"x{kind}").exists()
    assert run(tmp_path / "r.json", "-o", tmp_path / "x.md").exit_code == 0


OVERFLOW = """() => {
  const found = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) found.push(`page: ${root.scrollWidth} > ${root.clientWidth}`);
  for (const e of document.querySelectorAll("body *:not(svg *):not(thead, thead *, details caption)")) {
    const box = e.getBoundingClientRect();
    if (e.closest("thead") && getComputedStyle(e.closest("thead")).position === "absolute") continue;
    if (box.width === 0) continue;
    const outside = (inner, outer) => inner.left < outer.left - 1 || inner.right > outer.right + 1;
    if (outside(box, root.getBoundingClientRect())) found.push(`${e.tagName} leaves the page: ${e.textContent}`);
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && getComputedStyle(e).display !== "inline")
      found.push(`${e.tagName} overflows: ${e.textContent.slice(0, 80)}`);
  }
  for (const svg of document.querySelectorAll("svg")) {
    const whole = svg.getBoundingClientRect();
    if (whole.width < 200) found.push(`a picture ${whole.width} wide`);
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      const beside = box.left < whole.left - 1 || box.right > whole.right + 1;
      if (beside || box.top < whole.top - 1 || box.bottom > whole.bottom + 1)
        found.push(`text leaves its picture: ${text.textContent}`);
      const size = parseFloat(getComputedStyle(text).fontSize) * whole.width / svg.viewBox.baseVal.width;
      if (size < 9) found.push(`text of ${size} pixels: ${text.textContent}`);
    }
  }
  return found;
}"""
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.mark.gate
def test_nothing_overflows_in_a_browser(page, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None and not os.environ.get("TFGC_REQUIRE_BROWSER"):
        pytest.skip("no chromium")
    from playwright import sync_api

    (tmp_path / "page.html").write_text(page)
    hues = set()
    with sync_api.sync_playwright() as playwright:
        # Launched this way the browser has a new folder of its own for the user's data.
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS, headless=True)
        for scheme in ("light", "dark"):
            tab = browser.new_page(color_scheme=scheme)
            tab.goto((tmp_path / "page.html").as_uri())
            tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            for width in (360, 768, 1280):
                tab.set_viewport_size({"width": width, "height": 800})
                assert tab.evaluate(OVERFLOW) == [], (scheme, width)
            hues.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        tab.add_style_tag(content="caption { width: 1400px; display: block }")
        assert tab.evaluate(OVERFLOW), "the check itself finds nothing"
        tab = browser.new_page(java_script_enabled=False)
        tab.goto((tmp_path / "page.html").as_uri())
        tab.locator("summary", has_text="Segments of optimal-graph").click()
        assert tab.locator("td", has_text="conv3_block1_1_conv ... conv4_block1_out").is_visible()
        browser.close()
    assert len(hues) == 2
