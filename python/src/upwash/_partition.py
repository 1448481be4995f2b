"""The examples and batches of one worker, as `upwash.train` gives them to it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import _upwash
from .errors import DataError

__all__ = ["Sampler", "partition"]


def partition(labels: Any, workers: int, how: str = "balanced", *, seed: int = 1) -> list[np.ndarray]:
    """Splits examples among workers: the indices of each worker's examples.

    >>> [shard.size for shard in upwash.partition([0, 1] * 50, workers=4)]
    [24, 24, 24, 24]
    >>> shards = upwash.partition([0, 1] * 50, 2, "shards:1")      # sorted by label, one piece for each worker
    >>> sorted(int(shard[0]) % 2 for shard in shards)
    [0, 1]

    Args:
        labels: the label of every example, an integer from 0 to 255; or the number of examples, for `"iid"`.
        workers: the number of workers.
        how: `"balanced"` (the same number of each label for every worker), `"iid"`, `"dirichlet:ALPHA"` or `"shards:N"`,
            as `data.partition` in configurations.
        seed: the seed of random choices. All workers need the same.
    """
    return _native(labels, workers, how, 1, seed).shards


class Sampler:
    """The batches of one worker, as indices, in the order in which `upwash.train` draws them.

    It is a batch sampler of PyTorch: `DataLoader(data, batch_sampler=upwash.Sampler(labels, opt.workers, opt.worker, 32))`.

    >>> sampler = upwash.Sampler([0, 1] * 50, workers=4, worker=2, batch_size=8)
    >>> len(sampler), [len(batch) for batch in sampler]
    (3, [8, 8, 8])

    A worker goes through its examples in a new order in every pass, and batches are cut from these orders one after the
    other, so that all have the same size. One iteration is an epoch: the rounds that cover the largest share once. The
    next iteration is the next epoch; `set_epoch` chooses another one, for example after a restart.

    Args:
        labels, workers, partition, seed: as for `upwash.partition`.
        worker: the worker whose batches these are.
        batch_size: the number of examples in a batch.
    """

    def __init__(
        self,
        labels: Any,
        workers: int,
        worker: int,
        batch_size: int,
        *,
        partition: str = "balanced",
        seed: int = 1,
    ) -> None:
        self._native = _native(labels, workers, partition, batch_size, seed)
        self._native.indices(worker, 0)  # refuses a worker without examples
        self._worker = worker
        self._epoch = 0

    @property
    def shard(self) -> np.ndarray:
        """The indices of the worker's examples."""
        return self._native.shards[self._worker]

    def batch(self, round: int) -> np.ndarray:
        """The indices of the batch of a round."""
        return self._native.indices(self._worker, round)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration, from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._native.rounds_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        first = self._epoch * len(self)
        self._epoch += 1
        for round in range(first, first + len(self)):
            yield self.batch(round).tolist()


def _native(labels: Any, workers: int, how: str, batch_size: int, seed: int) -> _upwash.NativeSampler:
    if isinstance(labels, (int, np.integer)):
        if how != "iid":
            raise DataError(
                f'partition "{how}" needs the label of every example; only "iid" needs no more than their number'
            )
        labels = np.zeros(int(labels), np.uint8)
    if hasattr(labels, "detach"):
        labels = labels.detach().cpu().numpy()
    try:
        labels = np.asarray(labels)
    except ValueError as error:
        raise DataError(f"labels: expected a list of integers: {error}") from error
    if labels.ndim != 1 or labels.dtype.kind not in "iub" or labels.size == 0:
        raise DataError(f"labels: expected a list of integers, not an array of {labels.dtype} of shape {labels.shape}")
    if labels.min() < 0 or labels.max() > 255:
        if how != "iid":
            raise DataError(f'labels from {labels.min()} to {labels.max()}: partition "{how}" has labels from 0 to 255')
        labels = np.zeros(labels.size)
    return _upwash.NativeSampler(np.ascontiguousarray(labels, dtype=np.uint8), workers, how, batch_size, seed)
