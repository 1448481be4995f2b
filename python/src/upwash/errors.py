"""The exceptions of this package. Their texts are those of the program `upwash`: what failed, where, and what to do.

A value of a wrong Python type raises a `TypeError`, as everywhere.
"""

__all__ = [
    "AlgorithmError",
    "ConfigError",
    "DataError",
    "GraphError",
    "InternalError",
    "MissingPackageError",
    "RunDirectoryError",
    "RunError",
    "StopTraining",
    "UpwashError",
]


class UpwashError(Exception):
    """The base of all exceptions of this package."""


class ConfigError(UpwashError, ValueError):
    """A configuration has an unknown key, a value out of range, or settings that exclude each other."""


class GraphError(UpwashError, ValueError):
    """A graph, its weights or a schedule is invalid."""


class DataError(UpwashError, ValueError):
    """A data set is invalid, cannot be loaded, or cannot be split among the workers."""


class AlgorithmError(UpwashError, ValueError):
    """An algorithm in Python declares something invalid, or returns an invalid plan."""


class RunDirectoryError(UpwashError, OSError):
    """A run directory is in use, holds another run, has nothing to resume, or cannot be read or written. So cannot a file
    that a run, a report or a picture is saved to."""


class RunError(UpwashError, RuntimeError):
    """A run failed after it had started. The text names its last checkpoint."""


class MissingPackageError(UpwashError, ImportError):
    """An optional package is not installed. The text names it."""


class InternalError(UpwashError, RuntimeError):
    """An error in Upwash itself. Please report it."""


class StopTraining(Exception):
    """Raised by a callback to end a run cleanly: after the current round, with a checkpoint.

    `upwash.train` then returns the run, whose status is `interrupted`.
    """
