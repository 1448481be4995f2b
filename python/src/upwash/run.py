"""Runs, from their directories."""

import glob
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from . import _display, _upwash
from ._display import Svg
from ._records import Record, of_json
from ._tables import table
from ._temporary import TemporaryFolder
from .errors import MissingPackageError, RunDirectoryError

__all__ = ["Run", "Runs", "load"]


class Run:
    """A run, finished or in progress, as its directory describes it.

    >>> run = upwash.train({"graph.topology": "ring:4", "training.epochs": 2}, progress=False)
    >>> run
    <upwash.Run of AL-DSGD (sound) over D-PSGD on ring:4: finished, ... % right>
    >>> run.config["training"]["epochs"]
    2
    >>> {name: tensor.shape for name, tensor in run.model().items()}
    {'1.weight': (64, 64), '1.bias': (64,), '3.weight': (10, 64), '3.bias': (10,)}
    """

    def __init__(self, path: str | os.PathLike[str], *, temporary: TemporaryFolder | None = None) -> None:
        self.path = Path(path)
        """The run directory."""
        self._temporary = temporary
        self._read: tuple[tuple[int, ...], Record] | None = None
        self._details  # a folder that is no run is refused here

    @property
    def _details(self) -> Record:
        """What its files say, read again if they have changed."""
        files = [file for file in self.path.glob("**/*.json*") if file.is_file()]
        state = tuple(sorted(file.stat().st_mtime_ns for file in files))
        if self._read is None or self._read[0] != state:
            self._read = (state, of_json(_upwash.run_json(self.path)))
        return self._read[1]

    @property
    def name(self) -> str:
        """The name of its directory."""
        return str(self._details.name)

    @property
    def status(self) -> str:
        """`finished`, `interrupted`, `diverged`, `running`, or `cut off`: it failed, or its process was killed."""
        ending = self._details["ending"]
        if ending is not None:
            return str(ending.status)
        return "running" if any(_upwash.is_running(file.parent) for file in self._logs()) else "cut off"

    @property
    def summary(self) -> Record:
        """Its results: `summary.json` as attributes. An interrupted run has no accuracies."""
        path = self.path / "summary.json"
        if path.is_file():
            return of_json(path.read_text(encoding="utf-8"))
        if self._details["ending"] is None:
            text = f"the run in {self.path} has no summary, because it is {self.status}"
            raise RunDirectoryError(text + self._remedy())
        details = self._details.to_dict()
        return Record({name: details[name] for name in ("algorithm", "workers", "per_worker", "server")})

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration, with every default written out."""
        config: dict[str, Any] = json.loads(_upwash.json_of_toml(self._details.config))
        return config

    @property
    def events(self) -> Any:
        """All events, one a row, as in `events.jsonl`.

        >>> run = upwash.train({"training.epochs": 1}, progress=False)
        >>> list(run.events["event"])[:3] + list(run.events["event"])[-2:]
        ['started', 'graph', 'round', 'epoch', 'ended']
        """
        return table(list(self._events()))

    def _events(self) -> Iterator[dict[str, Any]]:
        """The events, in order. A process that was killed may have left an incomplete line."""
        files = self._logs()
        for file in files:
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    try:
                        event = json.loads(line)
                    except ValueError:
                        break
                    yield event if len(files) == 1 else {"process": file.parent.name, **event}

    def _logs(self) -> list[Path]:
        """The files of events, one for each process."""
        return sorted(self.path.glob("events.jsonl")) or sorted(self.path.glob("*/events.jsonl"))

    @property
    def epochs(self) -> Any:
        """A row for each epoch and worker: loss, accuracy, consensus distance and costs.

        >>> run = upwash.train({"graph.topology": "ring:3", "training.epochs": 2}, progress=False)
        >>> len(run.epochs)
        6
        """
        return table(self._epoch_rows())

    def _epoch_rows(self) -> list[dict[str, Any]]:
        details = self._details.to_dict()
        return [
            {
                "epoch": epoch["epoch"],
                "worker": worker,
                "train_loss": _at(epoch["losses"], worker),
                "test_accuracy": _at(epoch["accuracies"], worker),
                "consensus_distance": epoch["consensus"],
                "bytes_sent": epoch["bytes"],
                "simulated_seconds": epoch["seconds"],
            }
            for epoch in details["epochs"]
            for worker in range(details["workers"])
            if worker != details["server"]
        ]

    @property
    def graph(self) -> _upwash.Graph:
        """The graph of the workers, before any rotation."""
        graph = self._details["graph"]
        if graph is None:
            raise RunDirectoryError(f"the events in {self.path} do not describe the graph")
        return _upwash.Graph.from_matchings(self._details.workers, graph.to_dict()["matchings"])

    def model(self, framework: str = "numpy") -> dict[str, Any]:
        """The resulting model of a finished run, the average of all workers' models: tensors by name.

        Args:
            framework: `numpy` for arrays, `torch` for a `state_dict`.
        """
        path = self.path / "model.safetensors"
        if not path.is_file():
            what = f"the run in {self.path} has no model, because it is {self.status}: only a finished run has one"
            raise RunDirectoryError(what + self._remedy())
        arrays = _upwash.read_model(path)
        if framework == "numpy":
            return arrays
        if framework != "torch":
            raise ValueError(f"framework {framework!r} is unknown: write numpy or torch")
        try:
            import torch
        except ImportError as error:
            text = 'model("torch") needs the package torch: pip install torch, or upwash[torch]'
            raise MissingPackageError(text) from error
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}

    def _remedy(self) -> str:
        """What brings a run to its end."""
        resume = f"; continue it with upwash.train(..., out={os.fspath(self.path)!r}, resume=True)"
        return {"interrupted": resume, "cut off": resume, "running": "; wait until it ends"}.get(self.status, "")

    def figures(self) -> dict[str, Svg]:
        """The charts of its report, by name."""
        return {name: Svg(text) for name, text in _upwash.figures([self.path])}

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Writes a page about the run: one HTML file that needs nothing else."""
        return Runs([self]).report(path)

    def save(self, path: str | os.PathLike[str]) -> "Run":
        """Copies the run directory, and returns the run in the copy."""
        path = Path(path)
        try:
            if path.exists() and any(path.iterdir()):
                raise RunDirectoryError(f"{path} is not empty: choose another directory")
            shutil.copytree(self.path, path, dirs_exist_ok=True)
        except RunDirectoryError:
            raise
        except OSError as error:
            raise RunDirectoryError(f"cannot copy {self.path} to {path}: {error}") from error
        return Run(path)

    def _row(self) -> dict[str, Any]:
        """Its line in a table of runs."""
        summary = self.summary if self._details["ending"] is not None else {}
        row = {"run": self.name, "algorithm": self._details.algorithm, "graph": self._details.graph_name}
        row |= {"status": self.status, "seed": self.config.get("seed", 0)}
        for name in ("mean_accuracy", "worst_accuracy", "averaged_model_accuracy", "consensus_distance", "bytes_sent"):
            row[name] = summary.get(name)
        return row | {
            "simulated_seconds": summary.get("simulated_seconds"),
            "wall_seconds": summary.get("wall_seconds"),
        }

    def _repr_html_(self) -> str:
        head = _display.table([self._row()])
        return head + _display.row_of_figures(list(self.figures().values()))

    def __repr__(self) -> str:
        details, accuracy = self._details, self._row()["mean_accuracy"]
        right = "" if accuracy is None else f", {100 * accuracy:.2f} % right"
        return f"<upwash.Run of {details.algorithm} on {details.graph_name}: {self.status}{right}>"


def _at(values: list[Any] | None, index: int) -> Any:
    return values[index] if values is not None and index < len(values) else None


class Runs(Sequence[Run]):
    """Several runs. A notebook shows them as a table with charts.

    >>> first = upwash.train({"training.epochs": 1}, progress=False)
    >>> runs = upwash.Runs([first])
    >>> len(runs), len(runs.table())
    (1, 1)
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = list(runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | slice) -> "Run | Runs":
        return Runs(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def table(self) -> Any:
        """A row for each run."""
        return table([run._row() for run in self._runs])

    def figures(self) -> dict[str, Svg]:
        """The charts that compare the runs, by name."""
        return {name: Svg(text) for name, text in _upwash.figures([run.path for run in self._runs])}

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Writes a page that shows the runs side by side: one HTML file that needs nothing else."""
        page = _upwash.report_page([run.path for run in self._runs])
        return _display.write(path, page)

    def _repr_html_(self) -> str:
        head = _display.table([run._row() for run in self._runs])
        shown = {name: figure for name, figure in self.figures().items() if not name[-1:].isdigit()}
        return head + _display.row_of_figures(list(shown.values()))

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self._runs)) + "]"


def load(*paths: str | os.PathLike[str]) -> Runs:
    """Reads runs from their directories. A path may be a pattern, such as `runs/*`, or a folder of runs.

    >>> first = upwash.train({"training.epochs": 1}, progress=False)
    >>> upwash.load(first.path)[0].status
    'finished'
    """
    found: list[Run] = []
    for path in paths:
        pattern = os.fspath(path)
        folders = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        runs = [run for folder in folders for run in _runs_in(Path(folder))]
        if not runs:
            # The error of a folder that is no run says what is expected.
            runs = [Run(folders[0] if folders else pattern)]
        found += runs
    if not paths:
        raise TypeError("load: name the directory of at least one run")
    return Runs(found)


def _runs_in(folder: Path) -> list[Run]:
    """The run in a folder, or the runs in its folders."""
    if (folder / "events.jsonl").is_file() or list(folder.glob("rank-*/events.jsonl")) or _is_of_peers(folder):
        return [Run(folder)]
    if not folder.is_dir():
        return []
    return [run for inner in sorted(folder.iterdir()) if inner.is_dir() for run in _runs_in(inner)]


def _is_of_peers(folder: Path) -> bool:
    return bool(list(folder.glob("peer-*/events.jsonl")))
