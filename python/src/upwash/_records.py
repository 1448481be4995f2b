"""Objects made of JSON: what the native part reports, as attributes."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class Record(Mapping[str, Any]):
    """Named values, as attributes and as items. Lists of numbers are arrays.

    >>> record = Record({"nodes": 3, "degrees": [1, 2, 1]})
    >>> record.nodes, record["nodes"]
    (3, 3)
    >>> record.degrees
    array([1, 2, 1])
    >>> sorted(record)
    ['degrees', 'nodes']
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return _value(self._values[name])
        except KeyError:
            known = ", ".join(self._values)
            raise AttributeError(f"there is no {name!r} here, only {known}") from None

    def __getitem__(self, name: str) -> Any:
        return _value(self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        """Whether all values are equal, in whatever form `other` has lists of numbers.

        >>> Record({"degrees": [1, 2]}) == Record({"degrees": [1, 2]}), Record({"degrees": [1, 2]}) == {"degrees": (1, 3)}
        (True, False)
        """
        if not isinstance(other, Mapping):
            return NotImplemented
        return bool(_plain(self) == _plain(other))

    __hash__ = None  # type: ignore[assignment]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self._values),))

    def __repr__(self) -> str:
        return f"Record({dict(self._values)!r})"

    def to_dict(self) -> dict[str, Any]:
        """The values as plain dicts and lists.

        >>> Record({"degrees": [1, 2]}).to_dict()
        {'degrees': [1, 2]}
        """
        values: dict[str, Any] = json.loads(json.dumps(self._values))
        return values


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        if value and all(isinstance(entry, (int, float, type(None))) for entry in value):
            return np.array([np.nan if entry is None else entry for entry in value])
        return [_value(entry) for entry in value]
    return value


def _plain(value: Any) -> Any:
    """A value as dicts and lists."""
    if isinstance(value, Record):
        return value._values
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value


def of_json(text: str) -> Record:
    """The record that a JSON object describes."""
    return Record(json.loads(text))
