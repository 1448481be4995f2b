"""Everything that is fixed before the first round."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _config, _upwash
from .algorithm import Algorithm
from .data import Dataset, dataset_of

__all__ = ["Experiment"]


class Experiment:
    """What a configuration means, without training: the graph, its schedule, every worker's data and batches.

    >>> experiment = upwash.Experiment({"graph.topology": "ring:4", "training.batch_size": 32})
    >>> experiment.workers, experiment.rounds_per_epoch, experiment.parameters
    (4, 12, 4810)
    >>> experiment.schedule.round(0).mixing[0]
    array([0.333..., 0.333..., 0.        , 0.333...])
    >>> values, labels = experiment.batch(worker=2, round=7)
    >>> values.shape, labels.shape
    ((32, 1, 8, 8), (32,))

    The batches are those of `upwash.train` with the same configuration: they depend on the seed, the worker and the round
    only.
    """

    def __init__(
        self,
        config: _config.Config | None = None,
        *,
        overrides: Mapping[str, Any] | None = None,
        data: Dataset | Any = None,
        algorithm: Algorithm | None = None,
    ) -> None:
        read = _config.read(config, overrides)
        dataset = None if data is None else dataset_of(data)._for(_upwash)
        with read.naming_file():
            self._native = _upwash.NativeExperiment(read.toml, read.assignments, read.files, dataset, algorithm)
        self.config: dict[str, Any] = json.loads(_upwash.json_of_toml(self._native.config_toml))
        """The configuration, with every default written out."""

    @property
    def graph(self) -> _upwash.Graph:
        """The graph before any rotation."""
        return self._native.graph

    @property
    def schedule(self) -> _upwash.Schedule:
        """The links and mixing weights of each round."""
        return self._native.schedule

    @property
    def algorithm(self) -> str:
        """The name of the algorithm in reports."""
        return self._native.algorithm

    @property
    def workers(self) -> int:
        """The number of workers, including a server."""
        return self._native.workers

    @property
    def server(self) -> int | None:
        """The worker that has no data and serves the others, if there is one."""
        return self._native.server

    @property
    def rounds(self) -> int:
        """The number of rounds of a run."""
        return self._native.rounds

    @property
    def rounds_per_epoch(self) -> int:
        """The number of rounds of an epoch."""
        return self._native.rounds_per_epoch

    @property
    def parameters(self) -> int:
        """The number of parameters of a model."""
        return self._native.parameters

    @property
    def warnings(self) -> list[str]:
        """What a run would warn about."""
        return self._native.warnings

    @property
    def shards(self) -> list[np.ndarray]:
        """The indices of each worker's training examples."""
        return self._native.shards

    def indices(self, worker: int, round: int) -> np.ndarray:
        """The indices of the training examples in a worker's batch."""
        return self._native.indices(worker, round)

    def batch(self, worker: int, round: int) -> tuple[np.ndarray, np.ndarray]:
        """A worker's batch: scaled and augmented examples (N, C, H, W), and their labels."""
        return self._native.batch(worker, round)

    def initial_model(self, worker: int) -> dict[str, np.ndarray]:
        """The tensors from which a worker starts, by name."""
        return self._native.initial_model(worker)

    def __repr__(self) -> str:
        return repr(self._native)
