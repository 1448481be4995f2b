"""Comparisons over seeds."""

import numpy as np
import pandas
import pytest

import upwash
from upwash.errors import ConfigError


def test_comparisons_have_students_intervals(tmp_path):
    configs = {"a": {"graph.topology": "ring:3"}, "b": {"graph.topology": "complete:3"}}
    options = {"seeds": 3, "out": tmp_path, "overrides": {"training.epochs": 1}, "progress": False}
    comparison = upwash.compare(configs, **options)
    values = [run.summary.mean_accuracy for run in comparison["a"]]
    row = comparison.table.iloc[0]
    from scipy import stats

    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert row["mean_accuracy"] == pytest.approx(np.mean(values))
    assert row["mean_accuracy_margin"] == pytest.approx((high - low) / 2, rel=1e-3)
    pairs = [
        b.summary.mean_accuracy - a.summary.mean_accuracy for a, b in zip(comparison["a"], comparison["b"], strict=True)
    ]
    assert comparison.differences("a")["difference"][0] == pytest.approx(np.mean(pairs))
    # What exists is read, not run again.
    times = {run.path: (run.path / "summary.json").stat().st_mtime_ns for run in comparison["a"]}
    again = upwash.compare(configs, **options)
    assert {run.path: (run.path / "summary.json").stat().st_mtime_ns for run in again["a"]} == times
    assert len(upwash.load(tmp_path)) == 6
    assert len(upwash.load(str(tmp_path / "*" / "seed-1"))) == 2
    assert upwash.compare({"loaded": upwash.load(tmp_path / "a")}).table["seeds"][0] == 3


def test_nothing_is_compared_before_all_configurations_are_valid(tmp_path):
    configs = {"good": {"training.epochs": 1}, "bad": {"training.epochs": 0}}
    with pytest.raises(ConfigError, match="epochs = 0"):
        upwash.compare(configs, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_a_group_with_a_diverged_run_has_no_mean():
    rates = {"training.learning_rate": [0.05, 1e9]}
    found = upwash.sweep({"graph.topology": "ring:3", "training.epochs": 1}, rates, seeds=2, progress=False)
    assert list(found.table["diverged"]) == [0, 2]
    assert pandas.isna(found.table["mean_accuracy"][1]) and found.table["mean_accuracy"][0] > 0.1


def test_a_sweep_tries_every_combination(tmp_path):
    grid = {"training.learning_rate": [0.05, 0.1], "graph.copies": [1, 2]}
    found = upwash.sweep({"graph.topology": "ring:3", "training.epochs": 1}, grid, out=tmp_path, progress=False)
    assert sorted(found.groups) == [
        "learning_rate=0.05,copies=1",
        "learning_rate=0.05,copies=2",
        "learning_rate=0.1,copies=1",
        "learning_rate=0.1,copies=2",
    ]
    assert list(found.table["graph.copies"]) == [1, 2, 1, 2]
    assert "± " not in repr(found)


def test_runs_with_the_same_seed_all_count_and_are_not_paired(tmp_path):
    rings = [
        upwash.train({"graph.topology": f"ring:{n}", "training.epochs": 1}, out=tmp_path / str(n), progress=False)
        for n in (3, 4)
    ]
    comparison = upwash.compare({"both": upwash.Runs(rings), "one": rings[0]})
    row = comparison.table.iloc[0]
    assert (row["runs"], row["seeds"]) == (2, 1)
    assert row["mean_accuracy"] == pytest.approx(np.mean([run.summary.mean_accuracy for run in rings]))
    assert repr(comparison).splitlines()[0].endswith("2 runs with 1 seeds")
    with pytest.raises(ConfigError, match="both: .* have the same seed 1 and cannot both be paired"):
        comparison.differences("one")


def test_differences_say_how_many_runs_have_diverged(tmp_path):
    common = {"graph.topology": "ring:3", "training.epochs": 1}
    sane = upwash.compare({"sane": common}, seeds=2, out=tmp_path / "sane", progress=False)["sane"]
    wild = upwash.train(
        common, overrides={"training.learning_rate": 1e9, "seed": 1}, out=tmp_path / "wild", progress=False
    )
    half = upwash.Runs([wild, sane[1]])
    found = upwash.compare({"sane": sane, "half": half, "one": sane[1]}).differences("sane")
    assert found["name"].tolist() == ["half", "one"]
    assert found["seeds"].tolist() == [2, 1]
    assert found["diverged"].tolist() == [1, 0]
    assert pandas.isna(found["difference"][0]) and found["difference"][1] == 0.0
