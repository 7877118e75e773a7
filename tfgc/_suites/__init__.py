"""Benchmark suites, one a file, found by listing this folder; each is compared with published figures.

A suite is a module with

- a docstring whose first line says what it shows,
- `rows(scale)`: a list of `SuiteRow` (or `SearchRow`), each published batch (or budget) taken times `scale`,
- `sheets(results)`: a list of `TextTable` made from the `Results` of those rows, however many are there. A cell holds
  one figure, and a summary made from the results says what held and what did not.

Suites hold no TensorFlow: what they describe is run by `tfgc._measure.suite_runner`. `_rows` has what rows are made of,
`_figures` what tables are made of; the published figures are in `reference/`.
"""

import importlib
import pkgutil
from types import ModuleType

from tfgc._errors import OptionError, did_you_mean


def available() -> list[str]:
    """Names of the suites, sorted, as people write them.

    >>> "resnet-depth" in available()
    True
    """
    names = (module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__) if module.name[0] != "_")
    return sorted(names)


def get(suite: str) -> ModuleType:
    """The module of a suite.

    Raises:
        OptionError: For an unknown name, with near ones.
    """
    if suite not in available():
        raise OptionError(
            f"there is no suite {suite!r}{did_you_mean(suite, available())} (available: {', '.join(available())})"
        )
    return importlib.import_module(f"{__name__}.{suite.replace('-', '_')}")
