"""The progress bar and the warnings of a run."""

import sys
import types
import warnings

import pytest

import upwash

SMALL = {"graph.topology": "ring:4", "training.epochs": 2}
UNCONNECTED = {"graph.topology": "paper:L1@5", "training.epochs": 1, "algorithm.name": "dpsgd"}


def in_a_kernel(monkeypatch, kernel):
    """As if this process were, or were not, the kernel of a notebook."""
    shell = types.SimpleNamespace(kernel=kernel)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


@pytest.mark.parametrize(
    ("kernel", "progress", "is_shown"),
    [(None, None, False), (object(), None, True), (object(), False, False), (None, True, True)],
)
def test_a_bar_is_shown_in_a_notebook_without_a_terminal(kernel, progress, is_shown, monkeypatch, capsys):
    in_a_kernel(monkeypatch, kernel)
    upwash.train(SMALL, progress=progress)
    assert ("round" in capsys.readouterr().err) == is_shown


@pytest.mark.parametrize("progress", [False, True])
def test_warnings_do_not_depend_on_the_bar(progress):
    with pytest.warns(UserWarning, match="connected") as caught:
        upwash.train(UNCONNECTED, progress=progress)
    assert caught[0].filename == __file__


def test_warnings_can_be_errors(tmp_path):
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="connected"):
        warnings.simplefilter("error")
        upwash.train(UNCONNECTED, out=tmp_path / "run", progress=False)
    assert upwash.load(tmp_path / "run")[0].status == "interrupted"
