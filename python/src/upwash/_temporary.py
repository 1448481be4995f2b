"""Temporary folders that a forked child leaves alone."""

import os
import shutil
import tempfile
import weakref


class TemporaryFolder:
    """A folder that exists as long as this object, or until the process ends that created it.

    >>> import os
    >>> folder = TemporaryFolder("upwash-")
    >>> path = folder.path
    >>> os.path.isdir(path)
    True
    >>> del folder
    >>> os.path.isdir(path)
    False
    """

    def __init__(self, prefix: str) -> None:
        self.path = tempfile.mkdtemp(prefix=prefix)
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: str, process: int) -> None:
    """Removes a folder. A child that inherited it by a fork must not."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
