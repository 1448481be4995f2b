"""What an algorithm in Python is, as a checksum: a run is continued only with the same one.

It covers the code of the class and of its bases, their attributes, those of the instance, and the numbers and texts among
the global variables that methods use. It does not cover functions and classes that the methods call. Code is compared as
Python has compiled it: the source may have been edited since, and a cell of a notebook has none. So a run that is to
continue needs the same version of Python.
"""

import functools
import types
import zlib
from typing import Any

import numpy as np

from .algorithm import Algorithm

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_DEPTH = 8
"""How deep values are described: a list can contain itself."""
_IGNORED = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"}
"""Attributes of a class that change nothing, besides those that newer versions of Python add."""
_ADDED = {"__firstlineno__", "__static_attributes__", "__annotations_cache__"}


def fingerprint(algorithm: Algorithm) -> int:
    """A checksum other than 0.

    >>> class Mix(upwash.Algorithm):
    ...     def __init__(self, part):
    ...         self.part = part
    ...     def plan(self, view):
    ...         return view.weights()
    >>> fingerprint(Mix(0.1)) == fingerprint(Mix(0.1)), fingerprint(Mix(0.1)) == fingerprint(Mix(0.2))
    (True, False)
    """
    classes = [each for each in type(algorithm).__mro__ if each not in (Algorithm, object)]
    parts = [
        [(name, _described(value)) for name, value in sorted(vars(each).items()) if name not in _IGNORED | _ADDED]
        for each in classes
    ]
    parts.append(_described(getattr(algorithm, "__dict__", {})))
    return zlib.crc32(repr(parts).encode("utf-8", "backslashreplace")) or 1


def _described(value: Any, depth: int = _DEPTH) -> Any:
    """A value as something whose `repr` is the same in every process."""
    if isinstance(value, _PLAIN):
        return value
    if depth == 0:
        return "..."
    inner = functools.partial(_described, depth=depth - 1)
    match value:
        case list() | tuple():
            return [inner(entry) for entry in value]
        case set() | frozenset():
            return sorted(repr(inner(entry)) for entry in value)
        case dict():
            return [(repr(inner(key)), inner(entry)) for key, entry in value.items()]
        case np.ndarray():
            return (value.dtype.str, value.shape, zlib.crc32(np.ascontiguousarray(value).tobytes()))
        case np.generic():
            return value.item()
        case types.CodeType():
            return (value.co_code, inner(value.co_consts), value.co_names, value.co_varnames, value.co_freevars)
        case types.FunctionType():
            return _function(value, inner)
        case staticmethod() | classmethod():
            return inner(value.__func__)
        case property():
            return inner((value.fget, value.fset))
        case functools.partial():
            return inner((value.func, value.args, value.keywords))
        case _:
            # An object of another class: its attributes are not covered.
            return type(value).__qualname__


def _function(function: types.FunctionType, inner: Any) -> Any:
    """The code of a function, its defaults, and what it uses from outside."""
    code = function.__code__
    without_docstring = code.replace(
        co_consts=tuple(None if const == function.__doc__ else const for const in code.co_consts)
    )
    used = [function.__globals__.get(name) for name in code.co_names]
    for cell in function.__closure__ or ():
        try:
            used.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            pass
    # Other values from outside may change during a run, such as a list of what the algorithm has seen.
    outside = [value if isinstance(value, _PLAIN) else None for value in used]
    return inner((without_docstring, function.__defaults__, function.__kwdefaults__, outside))
