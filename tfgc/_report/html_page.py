"""Reports of results: a self-contained HTML page, Markdown, or plots as a PNG. No TensorFlow, nothing is measured."""

import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from tfgc._errors import OptionError, TfgcError
from tfgc._records.measurement import Results, Study
from tfgc._report import markdown, plots, study_summary, study_tables, svg
from tfgc._terminal import printable

ENDINGS = (".html", ".md", ".png")


def ending(path: str | os.PathLike[str]) -> str:
    """The format that a file's name asks for, one of `ENDINGS`; raise `OptionError` for others."""
    found = pathlib.Path(path).suffix.lower()
    if found not in ENDINGS:
        raise OptionError(f"{str(path)!r}: a report is .html (a page), .md (Markdown) or .png (pictures)")
    return found


def render(results: Results | Sequence[Results], kind: str = ".html") -> str | bytes:
    """The report of one `Results` or several: bytes for `.png`, else text. The same results give the same bytes."""
    listed = [results] if isinstance(results, Results) else list(results)
    studies = study_tables.joined(listed)
    if kind == ".png":
        return _png(studies)
    if kind == ".md":
        return _markdown(listed, studies)
    words = {"title": _title(studies), "commands": _commands(listed), "predicted": plots.predicted(studies)}
    modules = {"about": study_summary, "sheets": study_tables, "plots": plots, "svg": svg.svg}
    return _jinja2().get_template("report.html.j2").render(studies=studies, **words, **modules)


def _png(studies: list[Study]) -> bytes:
    drawn = [plot for study in studies for plot in plots.of_study(study)]
    drawn += [plot for plot in [plots.predicted(studies)] if plot is not None]
    if not drawn:
        raise TfgcError("there is nothing to draw in these results: write .html or .md, which hold the tables")
    return svg.png(drawn)


def _markdown(listed: list[Results], studies: list[Study]) -> str:
    escape = markdown.escape
    parts = [f"# {escape(_title(studies))}\n"]
    for study in studies:
        parts += [f"## {escape(study_summary.heading(study))}\n", escape(study_summary.summary(study)) + "\n"]
        problems = [f"- **{escape(name)}**: {escape(what)}" for name, what in study_summary.problems(study)]
        parts += ["\n".join(problems) + "\n"] if problems else []
        parts += map(markdown.table, [*study_tables.shown(study), *study_tables.folded(study)])
    parts += ["## Glossary\n", "\n".join(f"- **{word}**: {meaning}" for word, meaning in study_summary.GLOSSARY) + "\n"]
    made_by = [f"- `{printable(' '.join(command.replace('`', ' ').split()))}`" for command in _commands(listed)]
    made_by += [f"- {escape(machine)}" for machine in study_summary.machines(studies)]
    return "\n".join([*parts, "## Made by\n", *made_by]).rstrip() + "\n"


def _title(studies: list[Study]) -> str:
    if not studies:
        return "No results"
    headings, networks = ({of(study) for study in studies} for of in (study_summary.heading, lambda s: s.network))
    name = f"{len(networks)} networks" if len(networks) > 1 else networks.pop() if len(headings) > 1 else headings.pop()
    return f"Memory and time of training {name}"


def _commands(listed: list[Results]) -> list[str]:
    return list(dict.fromkeys(line for one in listed for line in one.command.splitlines()))


def _jinja2() -> Any:
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
    # No line break between a figure and its unit.
    made.filters["whole"] = lambda text: re.sub(r"(\d) (%|[kMGT]?B\b|m?s\b)", "\\1\u00a0\\2", text)
    return made
