"""The notebook runs from its first cell to its last, and shows what it promises."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path):
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/svg+xml") >= 2
    assert "image/png" in kinds and "text/html" in kinds
    assert not any(output.get("name") == "stderr" for output in outputs), "a warning"
    table = next(
        output.data["text/plain"] for output in outputs if "± " in output.get("data", {}).get("text/plain", "")
    )
    assert table.count("5 seeds") == 4
