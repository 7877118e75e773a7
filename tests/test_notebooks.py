"""The notebooks run, hold the figures that they assert, and are committed as they ran."""

import asyncio
import pathlib
import re

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
SECONDS, BYTES, COLUMNS = 120, 300_000, 100


@EACH
@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_runs_in_two_minutes_with_nothing_but_the_package(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}})
    asyncio.run(asyncio.wait_for(client.async_execute(), SECONDS))


@EACH
def test_is_committed_as_it_ran(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert {output.output_type for output in outputs} <= {"stream", "display_data"}
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert path.stat().st_size < BYTES
    assert any("assert" in cell.source for cell in cells)
    assert max(len(line) for cell in cells for line in cell.source.splitlines()) <= COLUMNS


@EACH
def test_shows_neither_the_machine_nor_the_day(path):
    notebook = nbformat.read(path, as_version=4)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}
    assert not any(cell.metadata for cell in notebook.cells)
    assert not re.search(r"/(tmp|home|root|usr|opt|work)/|site-packages|\d\d:\d\d:\d\d", path.read_text())


@EACH
def test_links_lead_somewhere(path):
    for name in re.findall(r"\]\((\w+\.ipynb)\)", path.read_text()):
        assert (path.parent / name).exists(), name
