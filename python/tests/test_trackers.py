"""Trackers, with trackio's local store."""

import json
import os
import sqlite3
import subprocess
import sys
import textwrap

import pytest

import upwash

SMALL = {"graph.topology": "ring:4", "training": {"epochs": 3}}


class Recorder:
    """Stands for a tracker."""

    def __init__(self):
        self.calls = []

    def init(self, **about):
        self.calls.append(("init", about))

    def log(self, values, step=None):
        self.calls.append((step, values))

    def finish(self):
        self.calls.append(("finish", None))


def test_a_replayed_run_is_the_same_as_a_mirrored_one(tmp_path):
    live, later = Recorder(), Recorder()
    tracker = upwash.trackers.Tracker(live, project="p", batch_losses=5)
    run = upwash.train(SMALL, out=tmp_path / "run", callbacks=tracker, progress=False)
    upwash.trackers.replay(run, later, project="p", batch_losses=5)
    assert live.calls[1:] == later.calls[1:]
    about = later.calls[0][1]
    assert (about["name"], about["config"]["training"]["epochs"]) == ("run", 3)
    step, values = later.calls[-2]
    assert step == run.summary.rounds
    assert values["test_accuracy"] == pytest.approx(run.summary.mean_accuracy)
    assert values["worst_test_accuracy"] == pytest.approx(run.summary.worst_accuracy)
    assert [step for step, values in later.calls if step not in ("init", "finish") and "batch_loss" in values][:2] == [
        5,
        10,
    ]


@pytest.mark.parametrize("error", [upwash.StopTraining, KeyboardInterrupt, ZeroDivisionError])
def test_a_tracker_is_closed_however_a_run_ends(error, tmp_path):
    def end(event):
        if event.event == "round" and event.round == 3:
            raise error

    recorder = Recorder()
    tracker = upwash.trackers.Tracker(recorder, project="p")
    try:
        upwash.train(SMALL, callbacks=[tracker, end], progress=False)
    except error:
        pass
    assert [call[0] for call in recorder.calls] == ["init", "finish"]
    # It can follow another run.
    upwash.train(SMALL, callbacks=tracker, progress=False)
    assert [call[0] for call in recorder.calls][2:] == ["init", 1, 2, 3, "finish"]


def test_a_tracker_is_closed_when_a_run_fails():
    class Broken(upwash.Algorithm):
        def plan(self, view):
            raise ZeroDivisionError

    recorder = Recorder()
    with pytest.raises(ZeroDivisionError):
        tracker = upwash.trackers.Tracker(recorder, project="p")
        upwash.train(SMALL, algorithm=Broken(), callbacks=tracker, progress=False)
    assert [call[0] for call in recorder.calls] == ["init", "finish"]


def test_what_is_no_tracker_is_refused():
    with pytest.raises(TypeError, match="no function init"):
        upwash.trackers.Tracker(os, project="p")


def test_trackio_stores_a_run(tmp_path):
    pytest.importorskip("trackio")
    code = f"""
        import trackio as wandb
        import upwash
        run = upwash.train({SMALL!r}, progress=False, callbacks=upwash.trackers.Tracker(wandb, project="digits", name="live"))
        upwash.trackers.replay(run, wandb, project="digits", name="replayed")
        print(run.summary.mean_accuracy)
    """
    environment = {
        **os.environ,
        "TRACKIO_DIR": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.split()[-1])
    databases = list(tmp_path.glob("**/digits*.db"))
    assert databases, sorted(tmp_path.glob("**/*"))
    with sqlite3.connect(databases[0]) as store:
        rows = store.execute("select run_name, step, metrics from metrics order by step").fetchall()
    for name in ("live", "replayed"):
        last = [json.loads(metrics) for run, step, metrics in rows if run == name and step == 3]
        assert last[-1]["test_accuracy"] == accuracy
