"""Configurations as Python gives them: a dict, or a TOML file."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _upwash
from ._temporary import TemporaryFolder
from .errors import ConfigError

Config = Mapping[str, Any] | str | os.PathLike[str]


@dataclass
class ReadConfig:
    """A configuration for the native part."""

    toml: str
    """The configuration as TOML."""
    changes: list[tuple[str, Any]]
    """Keys and values that replace those of it."""
    files: str
    """The folder of the files that it names."""
    temporary: list[TemporaryFolder] = field(default_factory=list)
    """Folders of files that only this run needs."""
    source: str = ""
    """The file from which it was read, if there is one."""

    @contextmanager
    def naming_file(self) -> Iterator[None]:
        """Errors of the configuration begin with its file, as those of the program."""
        try:
            yield
        except ConfigError as error:
            if self.source:
                error.args = (f"{self.source}: {error}",)
            raise

    @property
    def assignments(self) -> list[str]:
        """The changes, as assignments `key=value` in TOML."""
        return [f"{key}={_toml(value)}" for key, value in self.changes]

    def merged(self) -> dict[str, Any]:
        """The configuration as a dict, after the changes."""
        merged: dict[str, Any] = json.loads(_upwash.json_of_toml(self.toml))
        for key, value in self.changes:
            _put(merged, key, value)
        return merged


def read(config: Config | None, overrides: Mapping[str, Any] | None = None) -> ReadConfig:
    """Reads a configuration.

    >>> read({"training": {"epochs": 3}, "graph.topology": "ring:4"}).toml
    '[graph]\\ntopology = "ring:4"\\n\\n[training]\\nepochs = 3\\n'
    """
    temporary: list[TemporaryFolder] = []
    changes = _flat(_plain(overrides or {}, "", temporary))
    if isinstance(config, (str, os.PathLike)):
        path = Path(config)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            remedy = "" if path.suffix == ".toml" else "; a configuration is a dict or the path of a TOML file"
            raise ConfigError(f"cannot read {path}: {error}{remedy}") from error
        return ReadConfig(text, changes, str(path.parent), temporary, str(path))
    if config is None:
        config = {}
    if not isinstance(config, Mapping):
        raise TypeError(f"a configuration is a dict or the path of a TOML file, not {type(config).__name__}")
    values = _plain(config, "", temporary)
    return ReadConfig(_upwash.toml_of_json(json.dumps(values)), changes, "", temporary)


def _plain(values: Mapping[str, Any], path: str, temporary: list[TemporaryFolder]) -> dict[str, Any]:
    """The values as JSON has them. Keys with dots are sections."""
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigError(f"the key {path}{key!r} is not a string")
        where = f"{path}{key}"
        if value is None:
            continue
        if isinstance(value, _upwash.Graph):
            key = key if where.endswith("topology") else f"{key}.topology"
            value = _topology(value, temporary)
        elif isinstance(value, Mapping):
            value = _plain(value, f"{where}.", temporary)
        else:
            value = _scalar(value, where)
        _put(plain, key, value)
    return plain


def _scalar(value: Any, where: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} = {value}: must be a finite number")
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy
        return _scalar(value.tolist(), where)
    if isinstance(value, Mapping):
        return {str(key): _scalar(entry, f"{where}.{key}") for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scalar(entry, where) for entry in value]
    raise ConfigError(f"{where}: a value of type {type(value).__name__} cannot be in a configuration")


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key}: {section} has a value already and cannot be a section")
    if isinstance(value, dict) and isinstance(values.get(last), dict):
        for inner, entry in value.items():
            _put(values[last], inner, entry)
    else:
        values[last] = value


def _flat(values: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    flat = []
    for key, value in values.items():
        flat += _flat(value, f"{path}{key}.") if isinstance(value, dict) else [(f"{path}{key}", value)]
    return flat


def _toml(value: Any) -> str:
    """A value in TOML, on one line.

    >>> _toml([{"address": "a:1", "weights": [1, 2.5]}, True])
    '[{"address" = "a:1", "weights" = [1, 2.5]}, true]'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _topology(graph: "_upwash.Graph", temporary: list[TemporaryFolder]) -> str:
    """The notation of a graph. One that has none is written to a file, which the run directory gets a copy of."""
    if graph.name is not None:
        return graph.name
    folder = TemporaryFolder("upwash-graph-")
    temporary.append(folder)
    file = Path(folder.path) / "graph.matchings"
    file.write_text(graph.matchings_file(), encoding="utf-8")
    return f"matchings:{file},nodes={graph.nodes}"
