"""Reports of results: a self-contained HTML page, Markdown, or plots as a PNG. No TensorFlow, nothing is measured."""

import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from tfgc._errors import OptionError, TfgcError
from tfgc._records.measurement import Results, Study
from tfgc._records.table import TextTable
from tfgc._report import fronts, markdown, plots, study_summary, study_tables, svg
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
    return (_html if kind == ".html" else _markdown)(listed, studies)


def _png(studies: list[Study]) -> bytes:
    drawn = [plot for study in studies for plot in plots.of_study(study)]
    drawn += [plot for plot in [plots.predicted(studies)] if plot is not None]
    if not drawn:
        raise TfgcError("there is nothing to draw in these results: write .html or .md, which hold the tables")
    return svg.png(drawn)


def _html(listed: list[Results], studies: list[Study]) -> str:
    drawn = [
        {
            "heading": study_summary.heading(study),
            "summary": study_summary.summary(study),
            "problems": study_summary.problems(study),
            "first": study_tables.compared(study),
            "tables": open_tables(study),
            "plots": [_drawn(p, f"p{i}-{j}") for j, p in enumerate(plots.of_study(study), start=1)],
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
            predicted=_drawn(plots.predicted(studies), "p0"),
            glossary=study_summary.GLOSSARY,
            commands=_commands(listed),
            machines=study_summary.machines(studies),
        )
    )


def _drawn(plot: svg.Plot | None, key: str) -> dict[str, str] | None:
    if plot is None:
        return None
    return {"title": plot.title, "alt_text": plot.alt_text, "svg": svg.svg(plot, key)}


def _markdown(listed: list[Results], studies: list[Study]) -> str:
    escape = markdown.escape
    parts = [f"# {escape(_title(studies))}\n"]
    for study in studies:
        parts += [f"## {escape(study_summary.heading(study))}\n", escape(study_summary.summary(study)) + "\n"]
        compared = filter(None, [study_tables.compared(study)])
        problems = [f"- **{escape(name)}**: {escape(what)}" for name, what in study_summary.problems(study)]
        parts += ["\n".join(problems) + "\n"] if problems else []
        parts += [markdown.table(sheet) for sheet in (*compared, *open_tables(study), *folded_tables(study))]
    parts += ["## Glossary\n", "\n".join(f"- **{word}**: {meaning}" for word, meaning in study_summary.GLOSSARY) + "\n"]
    made_by = [f"- `{printable(' '.join(command.replace('`', ' ').split()))}`" for command in _commands(listed)]
    made_by += [f"- {escape(machine)}" for machine in study_summary.machines(studies)]
    return "\n".join([*parts, "## Made by\n", *made_by]).rstrip() + "\n"


def open_tables(study: Study) -> list[TextTable]:
    """The tables of a study that a page shows at once, after that of what was compared."""
    bought = fronts.budgets(study.front) if study.front and study.front.choices else None
    return [sheet for sheet in (study_tables.predicted(study), bought) if sheet is not None]


def folded_tables(study: Study) -> list[TextTable]:
    """The tables of a study that a page shows when they are opened."""
    made = [fronts.table(study.front) if study.front else None]
    made += [study_tables.plan(name, parts) for name, parts in study_tables.plans(study)]
    return [sheet for sheet in (*made, study_tables.losses(study)) if sheet is not None]


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
