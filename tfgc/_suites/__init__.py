"""Benchmark suites, one a file, found by listing this folder; each is compared with published figures.

A suite is a module with

- a docstring whose first line says what it shows,
- `rows(scale)`: a list of `SuiteRow` (or `SearchRow`), each published batch (or budget) taken times `scale`,
- `sheets(results)`: a list of `TextTable` made from the `Results` of those rows, however many are there. A cell holds
  one figure, and a summary made from the results says what held and what did not.

Suites hold no TensorFlow: what they describe is run by `tfgc._measure.suite_runner`. `_rows` has what rows are made of,
`_figures` what tables are made of; the published figures are in `reference/`.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING

from tfgc._error_texts import one_line
from tfgc._errors import OptionError, TfgcError, did_you_mean

if TYPE_CHECKING:
    from tfgc._records.measurement import Results
    from tfgc._records.table import TextTable


def available() -> list[str]:
    """Names of the suites, sorted, as people write them.

    >>> "resnet-depth" in available()
    True
    """
    names = (module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__) if module.name[0] != "_")
    return sorted(names)


def get(suite: str) -> ModuleType:
    """The module of a suite."""
    if suite not in (known := available()):
        raise OptionError(f"there is no suite {suite!r}{did_you_mean(suite, known)} (available: {', '.join(known)})")
    return importlib.import_module(f"{__name__}.{suite.replace('-', '_')}")


def sheets(results: Results) -> list[TextTable]:
    """The tables of the suite that results belong to; only they know which of the published figures they need."""
    suite = get(results.suite)
    try:
        return suite.sheets(results)
    except (LookupError, TypeError, ValueError, ArithmeticError, AssertionError) as error:
        raise TfgcError(
            f"the results lack figures that the tables of {results.suite} need, or hold others: {one_line(error)}; "
            f"run tfgc bench {results.suite} again with a new file"
        ) from error
