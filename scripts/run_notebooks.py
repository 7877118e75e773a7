"""Run the notebooks and store what they print, without what tells of the machine: run_notebooks.py [NAME]."""

import pathlib
import sys
import tempfile

import nbclient
import nbformat

NOTEBOOKS = pathlib.Path(__file__).parent.parent / "notebooks"


def run(path: pathlib.Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(notebook, resources={"metadata": {"path": folder}}).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = _stored(cell.outputs)
    nbformat.write(notebook, path)


def _stored(outputs: list) -> list:
    """The figures, and all that was printed in a row as one output."""
    kept: list = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name != "stdout":
                continue
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
                continue
        elif "text/plain" in output.data:
            output.data["text/plain"] = "<Figure>"
        kept.append(output)
    return kept


if __name__ == "__main__":
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not sys.argv[1:] or any(name in path.stem for name in sys.argv[1:]):
            run(path)
            print(path.name)
