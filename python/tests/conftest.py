"""What tests share."""

import shutil
import signal
import sysconfig
from pathlib import Path

import pytest

# A job that a shell has put into the background ignores Ctrl-C, and so would all processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def program():
    """The program `upwash`, which is installed beside the package."""
    beside = Path(sysconfig.get_path("scripts")) / "upwash"
    found = beside if beside.is_file() else shutil.which("upwash")
    assert found, "the program upwash is not installed beside the package"
    return found
