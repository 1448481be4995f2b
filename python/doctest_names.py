"""A plugin of pytest: examples in docstrings see the package and numpy."""

import importlib.util

import numpy as np
import pytest

import upwash


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace.update(upwash=upwash, np=np)


def pytest_ignore_collect(collection_path):
    """What needs torch is left out where it is not installed."""
    needs_torch = "torch" in (collection_path.name, collection_path.stem, collection_path.parent.name)
    needs_torch = needs_torch or collection_path.name == "pytorch.md"
    return True if needs_torch and importlib.util.find_spec("torch") is None else None
