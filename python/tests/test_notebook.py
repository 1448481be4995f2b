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


def test_a_bar_is_shown_in_a_real_kernel():
    code = 'import upwash; upwash.train({"graph.topology": "ring:4", "training.epochs": 2}).status'
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    # As text, unless ipywidgets is installed.
    assert any("round" in output.get("text", "") or "widget" in str(output.get("data", "")) for output in outputs)
    assert "'finished'" in outputs[-1].data["text/plain"]
