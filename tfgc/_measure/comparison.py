"""What `tfgc.compare` returns: the measurements of one network, to look at, to save and to report."""

import dataclasses
import os
from collections.abc import Sequence
from typing import overload

from tfgc import _files
from tfgc._core.shown import Shown
from tfgc._records import results_json
from tfgc._records.measurement import Measurement, Results, Study
from tfgc._report import command_tables, html_page


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(Shown, Sequence[Measurement]):
    """A `Measurement` for each case, in the order in which they ran; print it for a table.

    Attributes:
        study: The same as data, with the network's name and batch size.

    Example:
        >>> from tfgc import Comparison, Measurement
        >>> from tfgc._records.measurement import Study
        >>> plain = Measurement("net", "plain", "graph", 8, peak_bytes=800, step_seconds=1.0)
        >>> found = Comparison(Study("net", 8, (plain, Measurement("net", "sqrt", "graph", 8, peak_bytes=200))))
        >>> found
        <Comparison of net, batch 8: plain-graph, sqrt-graph>
        >>> found[1].against(found[0])[0]
        0.75
    """

    study: Study

    @overload
    def __getitem__(self, index: int) -> Measurement: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Measurement, ...]: ...
    def __getitem__(self, index: int | slice) -> Measurement | tuple[Measurement, ...]:
        return self.study.records[index]

    def __len__(self) -> int:
        return len(self.study.records)

    def __str__(self) -> str:
        return command_tables.text(command_tables.comparison(self.study.records))

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        title = f"of {self.study.network}, batch {self.study.batch_size}: {', '.join(record.name for record in self)}"
        table = command_tables.comparison(self.study.records)
        return title, table.heads, table.rows

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all figures as JSON, which `tfgc report` reads.

        Args:
            path: The file; one that is there is replaced.

        Raises:
            TfgcError: If it cannot be written.
        """
        _files.write(path, results_json.to_json(self._results))

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page with tables and figures, as `tfgc report` does.

        Args:
            path: The file, `.html` (a page in one file), `.md` (Markdown) or `.png` (figures); one that is there is
                replaced.

        Raises:
            OptionError: For another ending.
            TfgcError: If it cannot be written, or the extra `report` is not installed.
        """
        _files.write(path, html_page.render(self._results, html_page.ending(path)))

    @property
    def _results(self) -> Results:
        return Results((self.study,), f"tfgc.compare({self.study.network}, {self.study.batch_size})")
