"""Runs in Weights & Biases or in trackio.

>>> import tempfile
>>> class Printer:                          # stands for `import trackio` or `import wandb`
...     def init(self, **about): print("init", about["project"])
...     def log(self, values, step=None): print(step, sorted(values)[:2])
...     def finish(self): print("finish")
>>> tracker = upwash.trackers.Tracker(Printer(), project="digits")
>>> run = upwash.train({"training.epochs": 1}, callbacks=tracker, progress=False)
init digits
1 ['bytes_sent', 'consensus_distance']
finish
"""

from collections.abc import Mapping
from typing import Any

from ._records import Record
from .run import Run

__all__ = ["Tracker", "replay"]


class Tracker:
    """A callback for `upwash.train` that mirrors events to a tracker with the functions `init`, `log` and `finish`.

    Args:
        module: `wandb` or `trackio`.
        project: the name of the project there.
        name: the name of the run there.
        config: what is recorded as its configuration; by default the algorithm, the graph and the numbers of workers,
            parameters and rounds.
        batch_losses: record the mean of the batch losses every so many rounds; 0 for never.
        options: passed to `init`.
    """

    def __init__(
        self,
        module: Any,
        *,
        project: str,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        batch_losses: int = 0,
        **options: Any,
    ) -> None:
        for function in ("init", "log", "finish"):
            if not callable(getattr(module, function, None)):
                raise TypeError(f"{module!r} is no tracker: it has no function {function}; give wandb or trackio")
        self._module = module
        self._options = {"project": project, "name": name, **options}
        self._config = config
        self._batch_losses = batch_losses
        self._per_epoch = 1
        self._server: int | None = None
        self._is_open = False

    def __call__(self, event: Record) -> None:
        match event.event:
            case "started":
                self._start(event)
            case "round" if self._batch_losses and (event.round + 1) % self._batch_losses == 0:
                self._module.log({"batch_loss": self._mean(event, "losses")}, step=event.round + 1)
            case "epoch":
                self._module.log(self._of_epoch(event), step=event.epoch * self._per_epoch)
            case "ended":
                self.close()

    def close(self) -> None:
        """Ends the run in the tracker, if it has begun. `upwash.train` does so when the run ends, however it does."""
        if self._is_open:
            self._is_open = False
            self._module.finish()

    def _start(self, event: Record) -> None:
        # Without batch losses, steps are epochs.
        self._per_epoch = event.rounds_per_epoch if self._batch_losses else 1
        self._server = event.get("server")
        if self._is_open:
            return
        about = ("algorithm", "graph", "workers", "parameters", "rounds", "rounds_per_epoch", "batch_size")
        config = dict(self._config) if self._config is not None else {name: event[name] for name in about}
        self._module.init(**self._options, config=config)
        self._is_open = True

    def _of_epoch(self, event: Record) -> dict[str, float]:
        values = {
            "train_loss": self._mean(event, "train_losses"),
            "test_accuracy": self._mean(event, "test_accuracies"),
        }
        tested = self._values(event, "test_accuracies")
        values["worst_test_accuracy"] = min(tested) if tested else None
        for name in ("consensus_distance", "bytes_sent", "simulated_seconds"):
            values[name] = event[name]
        return {name: value for name, value in values.items() if value is not None}

    def _values(self, event: Record, name: str) -> list[float]:
        values = event.to_dict().get(name) or []
        return [value for worker, value in enumerate(values) if value is not None and worker != self._server]

    def _mean(self, event: Record, name: str) -> float | None:
        values = self._values(event, name)
        return sum(values) / len(values) if values else None


def replay(run: Run, module: Any, *, project: str, **options: Any) -> None:
    """Sends the events of a run that exists to a tracker. `options` are those of `Tracker`.

    Its configuration is recorded in full.
    """
    options.setdefault("name", run.name)
    options.setdefault("config", run.config)
    tracker = Tracker(module, project=project, **options)
    try:
        for event in run._events():
            tracker(Record(event))
    finally:
        tracker.close()
