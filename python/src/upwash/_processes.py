"""Which worker of a run this process is."""

import os
import tomllib
from pathlib import Path

from . import _config
from .errors import ConfigError, RunError

PEERS = "UPWASH_PEERS"
"""The variable with a TOML file that lists all workers in `network.peers`."""
KEY = "UPWASH_KEY"
"""The variable with the key file of this worker."""
LAUNCHER = "UPWASH_LAUNCHER"
"""The variable that `upwash.launch` sets for its workers."""


class Launched:
    """What a worker knows about the process that started it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._parent = os.getppid() if LAUNCHER in os.environ else None

    def is_forked(self) -> bool:
        """Whether this is a child of the worker's process, for example one that loads data."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Ends a worker whose launcher was killed."""
        if self._parent is not None and os.getppid() != self._parent:
            raise RunError("`python -m upwash.launch` has ended, so its workers end as well")


def peers_of(
    read: _config.ReadConfig, key: str | os.PathLike[str] | None, transport: str | None, *, has_graph: bool
) -> tuple[list[dict[str, str]], str | None]:
    """The address and key of every worker, and the key file of this one. Both are empty for ranks of an MPI job, and for a
    process without others. Completes the configuration."""
    config = read.merged()
    has_graph = has_graph or "graph" in config
    if transport == "mpi":
        return [], None
    if transport is not None:
        raise ConfigError(f'transport "{transport}" is unknown: write "mpi", or leave it out')
    peers = config.get("network", {}).get("peers", [])
    if not peers and (file := os.environ.get(PEERS)):
        peers = _listed(file)
        read.changes.append(("network.peers", peers))
    if not has_graph:
        read.changes.append(("graph.topology", _default_graph(len(peers) or 1)))
    if not peers:
        return [], None
    key = key or os.environ.get(KEY)
    if key is None:
        raise ConfigError(
            "network.peers lists the workers, but which of them is this one? Name the file with its private key: "
            f'key="worker.key", or the variable {KEY}; `upwash keys new worker.key` makes one'
        )
    if not Path(key).is_file():
        raise ConfigError(f"there is no key {os.fspath(key)}: make one with `upwash keys new {os.fspath(key)}`")
    return peers, os.fspath(key)


def _default_graph(workers: int) -> str:
    return f"ring:{workers}" if workers > 2 else f"complete:{workers}"


def _listed(file: str) -> list[dict[str, str]]:
    try:
        peers = tomllib.loads(Path(file).read_text(encoding="utf-8"))["network"]["peers"]
        return [{"address": str(peer["address"]), "key": str(peer["key"])} for peer in peers]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{PEERS}={file}: cannot read network.peers from it: {error}") from error
