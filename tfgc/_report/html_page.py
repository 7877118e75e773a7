"""Reports of results: a page that needs nothing else, Markdown, or a picture. No TensorFlow, nothing is measured."""

import pathlib
import re

from tfgc import _suites
from tfgc._errors import OptionError, TfgcError
from tfgc._report import plots, study_tables, svg

ENDINGS = (".html", ".md", ".png")


def ending(path):
    """The format that a file's name asks for, one of `ENDINGS`; raise `OptionError` for others."""
    found = pathlib.Path(path).suffix.lower()
    if found not in ENDINGS:
        raise OptionError(f"{str(path)!r}: a report is .html (a page), .md (Markdown) or .png (pictures)")
    return found


def require(kind):
    """Import what a format needs, or say which extra brings it."""
    if kind != ".md":
        svg.require()
    if kind == ".html":
        _jinja2()


def render(results, kind=".html"):
    """The report of one `Results` or a list of them: bytes for `.png`, else text.

    The same results give the same bytes.

    Args:
        results: `Results`, or several of them.
        kind: One of `ENDINGS`.

    Raises:
        TfgcError: If a package is missing, or there is nothing to draw into a PNG.
    """
    listed = list(results) if isinstance(results, (list, tuple)) else [results]
    studies = study_tables.joined(listed)
    if kind == ".png":
        return _png(studies)
    return (_html if kind == ".html" else _markdown)(listed, studies)


def _png(studies):
    drawn = [picture for study in studies for picture in plots.of_study(study)]
    drawn += [picture for picture in [plots.foreseen(studies)] if picture is not None]
    if not drawn:
        raise TfgcError("there is nothing to draw in these results: write .html or .md, which hold the tables")
    return svg.png(drawn)


def _html(listed, studies):
    drawn = [
        {
            "heading": study_tables.heading(study),
            "summary": study_tables.summary(study),
            "problems": study_tables.problems(study),
            "first": study_tables.compared(study),
            "tables": open_tables(study)[1:] if study_tables.compared(study) else open_tables(study),
            "pictures": [_drawn(p, f"p{i}-{j}") for j, p in enumerate(plots.of_study(study), start=1)],
            "folded": folded_tables(study),
        }
        for i, study in enumerate(studies, start=1)
    ]
    return (
        _jinja2()
        .get_template("report.html.j2")
        .render(
            title=_title(studies),
            studies=drawn,
            suites=suites(listed),
            overview=study_tables.overview(studies) if len(studies) > 1 else None,
            foreseen=_drawn(plots.foreseen(studies), "p0"),
            words=study_tables.WORDS,
            commands=_commands(listed),
            machines=study_tables.machines(studies),
        )
    )


def _drawn(picture, key):
    return picture and {"title": picture.title, "told": picture.told, "svg": svg.svg(picture, key)}


def _markdown(listed, studies):
    lines = [f"# {_plain(_title(studies))}", ""]
    for sheet in suites(listed):
        lines += [f"## {_plain(sheet.title)}", "", *_rows(sheet), _plain(sheet.caption), ""]
    if len(studies) > 1:
        lines += _rows(study_tables.overview(studies))
    for study in studies:
        lines += [f"## {_plain(study_tables.heading(study))}", "", _plain(study_tables.summary(study)), ""]
        told = [f"- **{_plain(name)}**: {_plain(what)}" for name, what in study_tables.problems(study)]
        lines += [*told, ""] if told else []
        for sheet in (*open_tables(study), *folded_tables(study)):
            lines += [f"### {_plain(sheet.title)}", "", *_rows(sheet)]
            lines += [_plain(sheet.caption), ""] if sheet.caption else []
    lines += ["## Words", "", *(f"- **{word}**: {meaning}" for word, meaning in study_tables.WORDS), ""]
    lines += ["## Made by", ""]
    lines += [f"- `{' '.join(command.replace('`', ' ').split())}`" for command in _commands(listed)]
    lines += [f"- {_plain(told)}" for told in study_tables.machines(studies)]
    return "\n".join(lines).rstrip() + "\n"


def _rows(sheet):
    heads = [_plain(head) for head in sheet.heads]
    lines = ["| " + " | ".join(heads) + " |", "| --- " + "| ---: " * (len(heads) - 1) + "|"]
    return [*lines, *("| " + " | ".join(_plain(cell) or "-" for cell in row) + " |" for row in sheet.rows), ""]


def _plain(text):
    """The text as Markdown shows it: in a line, and nothing in it is markup."""
    for sign, instead in (("&", "&amp;"), ("<", "&lt;"), ("\\", "\\\\"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_")):
        text = text.replace(sign, instead)
    return " ".join(text.split())


def suites(listed):
    """The tables of the benchmark suites among the `Results`, beside published figures."""
    known = [one for one in listed if one.suite in _suites.available()]
    return [sheet for one in known for sheet in _suites.get(one.suite).sheets(one)]


def open_tables(study):
    made = [
        study_tables.compared(study),
        study_tables.foreseen(study),
        study_tables.choices(study),
        study_tables.published(study),
    ]
    return [sheet for sheet in made if sheet is not None]


def folded_tables(study):
    made = [study_tables.front(study), *(study_tables.plan(name, parts) for name, parts in study_tables.plans(study))]
    return [sheet for sheet in (*made, study_tables.losses(study)) if sheet is not None]


def _title(studies):
    if not studies:
        return "No results"
    names = list(dict.fromkeys(study_tables.heading(study) for study in studies))
    return f"Memory and time of training {names[0] if len(names) == 1 else f'{len(names)} networks'}"


def _commands(listed):
    return list(dict.fromkeys(line for one in listed for line in one.command.splitlines()))


def _jinja2():
    try:
        import jinja2
    except ImportError as error:
        raise TfgcError('an HTML report needs Jinja2: pip install "tfgc[report]"') from error
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("tfgc._report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A figure and its unit stay on one line.
    made.filters["whole"] = lambda text: re.sub(r"(\d) (%|[kMGT]?B\b|m?s\b)", "\\1\u00a0\\2", text)
    return made
