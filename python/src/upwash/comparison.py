"""Comparisons over seeds: `upwash.compare` and `upwash.sweep`."""

import copy
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import _config, _display, _upwash
from ._tables import table
from ._temporary import TemporaryFolder
from .algorithm import Algorithm
from .errors import ConfigError, MissingPackageError, RunError
from .experiment import Experiment
from .run import Run, Runs
from .training import train

__all__ = ["Comparison", "compare", "sweep"]

METRICS = ("mean_accuracy", "worst_accuracy", "averaged_model_accuracy", "consensus_distance")
"""What is compared; each is in the summary of a run."""


class Comparison:
    """Runs in groups, each with several seeds. `upwash.compare` and `upwash.sweep` return it.

    Intervals are 95 % confidence intervals of the mean over runs, by Student's t. They need at least two runs. A group of
    which a run has diverged or was interrupted has no means.
    """

    def __init__(self, groups: Mapping[str, Runs], settings: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.groups = dict(groups)
        """The runs of each group, in the order of their seeds."""
        self._settings = settings or {}

    def __getitem__(self, name: str) -> Runs:
        return self.groups[name]

    @property
    def table(self) -> Any:
        """A row for each group: means over seeds, and half the widths of their intervals (`..._margin`)."""
        return table(self._rows())

    def differences(self, base: str, metric: str = "mean_accuracy") -> Any:
        """How each group differs from `base`: the mean of the differences between runs with the same seed.

        An interval that does not contain 0 is evidence for a difference. `seeds` counts the pairs, and `diverged` those of
        which a run has diverged. There is no mean then: one without them would be too good. Nor is there one if a run was
        interrupted.
        """
        if base not in self.groups:
            raise KeyError(f"{base!r} is not one of {list(self.groups)}")
        reference = self._by_seed(base)
        rows = []
        for name in self.groups:
            if name == base:
                continue
            own = self._by_seed(name)
            pairs = [(own[seed], reference[seed]) for seed in own if seed in reference]
            diverged = sum("diverged" in (run.status, other.status) for run, other in pairs)
            values = [(run.summary.get(metric), other.summary.get(metric)) for run, other in pairs]
            known = [value - other for value, other in values if value is not None and other is not None]
            shown = [] if diverged or len(known) < len(pairs) else known
            row = {"name": name, "seeds": len(pairs), "diverged": diverged}
            rows.append({**row, "difference": _mean(shown), "margin": _upwash.margin(shown)})
        return table(rows, ["name", "seeds", "diverged", "difference", "margin"])

    def plot(self, metric: str = "mean_accuracy", ax: Any = None) -> Any:
        """A bar for each group, with its interval. Returns the axes of matplotlib."""
        if ax is None:
            try:
                from matplotlib import pyplot
            except ImportError as error:
                text = "plot needs the package matplotlib: pip install matplotlib, or upwash[plots]"
                raise MissingPackageError(text) from error
            _, ax = pyplot.subplots(figsize=(6, 0.5 * len(self.groups) + 1))
        rows = self._rows()
        percent = 100.0 if metric.endswith("accuracy") else 1.0
        heights = [percent * (row[metric] if row[metric] is not None else float("nan")) for row in rows]
        margins = [percent * (row[f"{metric}_margin"] or 0.0) for row in rows]
        names = [row["name"] for row in rows]
        ax.errorbar(heights, range(len(rows)), xerr=margins, fmt="o", capsize=4)
        ax.set_yticks(range(len(rows)), names)
        ax.invert_yaxis()
        ax.set_xlabel(metric.replace("_", " ") + (", %" if percent > 1 else ""))
        return ax

    def _by_seed(self, name: str) -> dict[int, Run]:
        """The runs of a group, which must have different seeds."""
        runs: dict[int, Run] = {}
        for run in self.groups[name]:
            seed = run.config.get("seed", 0)
            if seed in runs:
                text = f"{name}: {runs[seed].path} and {run.path} have the same seed {seed} and cannot both be paired"
                raise ConfigError(f"{text}: put runs of different configurations into groups of their own")
            runs[seed] = run
        return runs

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for name, runs in self.groups.items():
            diverged = sum(run.status == "diverged" for run in runs)
            row: dict[str, Any] = {
                "name": name,
                **self._settings.get(name, {}),
                "runs": len(runs),
                "seeds": len({run.config.get("seed", 0) for run in runs}),
                "diverged": diverged,
            }
            for metric in METRICS:
                known = [value for run in runs if (value := run.summary.get(metric)) is not None]
                # A mean without the runs that diverged would be too good, and one of fewer runs is another mean.
                values = [] if diverged or len(known) < len(runs) else known
                row[metric] = _mean(values)
                row[f"{metric}_margin"] = _upwash.margin(values)
            for cost in ("bytes_sent", "simulated_seconds"):
                row[cost] = _mean([value for run in runs if (value := run.summary.get(cost)) is not None])
            rows.append(row)
        return rows

    def _repr_html_(self) -> str:
        return _display.table(self._rows())

    def __repr__(self) -> str:
        lines = []
        for row in self._rows():
            accuracy, margin = row["mean_accuracy"], row["mean_accuracy_margin"]
            shown = "no accuracy" if accuracy is None else f"{100 * accuracy:.2f}"
            shown += "" if margin is None else f" ± {100 * margin:.2f}"
            shown += "" if accuracy is None else " % right"
            runs = "" if row["runs"] == row["seeds"] else f"{row['runs']} runs with "
            lines.append(f"{row['name']}: {shown}, {runs}{row['seeds']} seeds")
        return "\n".join(lines)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def compare(
    configs: Mapping[str, Any] | Iterable[Any],
    *,
    seeds: int | Iterable[int] = 5,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Comparison:
    """Trains every configuration with several seeds, or compares runs that exist.

    >>> algorithms = {name: {"algorithm.name": name, "training.epochs": 2} for name in ("dpsgd", "all-reduce")}
    >>> comparison = upwash.compare(algorithms, seeds=2, progress=False)
    >>> list(comparison.table["name"]), list(comparison.table["seeds"])
    (['dpsgd', 'all-reduce'], [2, 2])

    Args:
        configs: configurations by name, or the paths of TOML files, which are named by their files; or groups of runs by
            name (`upwash.load(...)`). An instance of `upwash.Algorithm` stands for a configuration with this algorithm.
        seeds: how many seeds, counted from the one of each configuration (1 by default), or which.
        out: the folder for results, with a run directory NAME/seed-N for each run. What exists there is not run again,
            so an interrupted comparison continues. Without it, results are kept as long as the comparison is in use.
        options: passed to `upwash.train`, for example `overrides={"training.epochs": 5}`.
    """
    named = _named(configs)
    existing = {name: value for name, value in named.items() if isinstance(value, (Run, Runs))}
    if existing:
        if len(existing) < len(named):
            raise TypeError("compare: give either configurations or runs")
        return Comparison({name: Runs([runs]) if isinstance(runs, Run) else runs for name, runs in existing.items()})
    return _train_all(named, seeds, out, options, {})


def sweep(
    config: _config.Config | None,
    grid: Mapping[str, Iterable[Any]],
    *,
    seeds: int | Iterable[int] = 1,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Comparison:
    """Trains a configuration with every combination of the values in `grid`, with several seeds.

    >>> rates = {"training.learning_rate": [0.01, 0.1]}
    >>> found = upwash.sweep({"training.epochs": 1}, rates, seeds=2, progress=False)
    >>> list(found.table["training.learning_rate"])
    [0.01, 0.1]
    """
    keys, values = list(grid), [list(entries) for entries in grid.values()]
    if not keys or not all(values):
        raise ConfigError("grid: name at least one key, and at least one value for each")
    overrides = options.pop("overrides", None) or {}
    named, settings = {}, {}
    for combination in itertools.product(*values):
        setting = dict(zip(keys, combination, strict=True))
        name = ",".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in setting.items())
        name = re.sub(r"[/\\\x00-\x1f]", "_", name)
        if name in named:
            raise ConfigError(f"grid: two combinations are called {name}")
        named[name], settings[name] = (config, {**overrides, **setting}), setting
    return _train_all(named, seeds, out, options, settings)


def _named(configs: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    if isinstance(configs, Mapping):
        return dict(configs)
    if isinstance(configs, (str, os.PathLike)):
        configs = [configs]
    named: dict[str, Any] = {}
    for config in configs:
        name = Path(config).stem if isinstance(config, (str, os.PathLike)) else None
        if name is None:
            raise TypeError("compare: give a dict from names to configurations, or paths of TOML files")
        if name in named:
            raise ConfigError(f"two configurations are called {name}: give a dict from names to configurations")
        named[name] = config
    return named


def _train_all(
    named: Mapping[str, Any],
    seeds: int | Iterable[int],
    out: str | os.PathLike[str] | None,
    options: dict[str, Any],
    settings: Mapping[str, Mapping[str, Any]],
) -> Comparison:
    if not named:
        raise ConfigError("there is nothing to compare: give at least one configuration")
    listed = None if isinstance(seeds, int) else list(seeds)
    if not (seeds if listed is None else listed):
        raise ConfigError("seeds: at least one is needed")
    if listed is not None and len(set(listed)) < len(listed):
        raise ConfigError(f"seeds = {listed}: each can be used once")
    temporary = TemporaryFolder("upwash-compare-") if out is None else None
    folder = Path(temporary.path if temporary is not None else out)  # type: ignore[arg-type]
    common = options.pop("overrides", None) or {}
    planned = {}
    for name, config in named.items():
        if not name or "/" in name or name in (".", ".."):
            raise ConfigError(f"{name!r} cannot be the name of a folder: rename this configuration")
        config, overrides = config if isinstance(config, tuple) else (config, common)
        own = {**options}
        if isinstance(config, Algorithm):
            config, own["algorithm"] = None, config
        # Everything that can be wrong is said before the first run.
        parts = {part: own[part] for part in ("data", "algorithm") if part in own}
        chosen = overrides if listed is None else {**overrides, "seed": listed[0]}
        first = Experiment(config, overrides=chosen, **parts).config["seed"]
        numbers = list(range(first, first + seeds)) if isinstance(seeds, int) else listed or []
        planned[name] = (config, overrides, own, numbers)
    groups = {}
    for name, (config, overrides, own, numbers) in planned.items():
        runs = []
        for seed in numbers:
            path = folder / name / f"seed-{seed}"
            # A copy, so that no run begins with what another has changed in the instance.
            each = {**own, "algorithm": copy.copy(own["algorithm"])} if own.get("algorithm") is not None else own
            run = train(config, overrides={**overrides, "seed": seed}, out=path, resume=True, **each)
            if run.status == "interrupted":
                raise RunError(f"the run in {path} was stopped: compare again with the same out= to continue")
            run._temporary = temporary
            runs.append(run)
        groups[name] = Runs(runs)
    return Comparison(groups, settings)
