"""A plugin of pytest: examples in docstrings see the package and numpy."""

import numpy as np
import pytest

import upwash


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace.update(upwash=upwash, np=np)
