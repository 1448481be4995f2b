"""Runs: training, reading, resuming, comparing."""

import json
import re
import subprocess
import sys

import numpy as np
import pandas
import pytest
from clouds import clouds

import upwash
from upwash.errors import AlgorithmError, ConfigError, DataError, RunDirectoryError

SMALL = {"graph.topology": "ring:4", "training": {"epochs": 2}}


@pytest.fixture(scope="module")
def run():
    return upwash.train(SMALL, progress=False)


def test_a_run_is_the_same_as_one_of_the_program(program, run, tmp_path):
    config = tmp_path / "small.toml"
    config.write_text('graph.topology = "ring:4"\ntraining.epochs = 2\n')
    subprocess.run([program, "--quiet", "train", config, "--out", tmp_path / "run"], check=True, capture_output=True)
    other = upwash.load(tmp_path / "run")[0]
    assert other.summary.per_worker[0].to_dict() == run.summary.per_worker[0].to_dict()
    for name, tensor in run.model().items():
        np.testing.assert_array_equal(other.model()[name], tensor)
    # And the program reads a run of this package.
    shown = subprocess.run([program, "show", run.path], check=True, capture_output=True, text=True).stdout
    assert run.summary.algorithm in shown


def test_events_and_epochs_are_data_frames(run):
    events = run.events
    assert isinstance(events, pandas.DataFrame)
    lines = (run.path / "events.jsonl").read_text().splitlines()
    assert list(events["event"]) == [json.loads(line)["event"] for line in lines]
    epochs = run.epochs
    last = epochs[epochs["epoch"] == 2]
    assert list(last["worker"]) == [0, 1, 2, 3]
    assert last["test_accuracy"].mean() == pytest.approx(run.summary.mean_accuracy)


def test_tables_without_pandas_are_of_arrow_or_dicts(run, monkeypatch):
    import builtins
    import importlib

    real = importlib.import_module

    def without(*missing):
        def import_module(name, package=None):
            if name in missing:
                raise ImportError(name)
            return real(name, package)

        return import_module

    monkeypatch.setattr(importlib, "import_module", without("pandas", "pyarrow"))
    epochs = run.epochs
    assert isinstance(epochs, builtins.list)
    assert epochs[0]["worker"] == 0


def test_a_model_computes_what_the_run_reports(run):
    model = run.model()
    data = upwash.Experiment(SMALL)
    # The training accuracy of the averaged model, computed by numpy, is far above chance.
    values, labels = data.batch(0, 0)
    hidden = np.maximum(values.reshape(len(values), -1) @ model["1.weight"].T + model["1.bias"], 0)
    predicted = (hidden @ model["3.weight"].T + model["3.bias"]).argmax(axis=1)
    assert (predicted == labels).mean() > 0.5


def test_files_overrides_and_sections_with_dots_mean_the_same(tmp_path, run):
    config = tmp_path / "a.toml"
    config.write_text('[graph]\ntopology = "ring:5"\n[training]\nepochs = 9\n')
    overrides = {"graph": {"topology": "ring:4"}, "training.epochs": np.int64(2)}
    other = upwash.train(config, overrides=overrides, progress=False)
    assert other.config == run.config
    assert other.summary.mean_accuracy == run.summary.mean_accuracy


def test_overrides_replace_values_as_the_program_does():
    config = {"algorithm": {"name": "matcha", "budget": 0.5}, "graph.topology": "ring:4"}
    experiment = upwash.Experiment(config, overrides={"algorithm.name": "dpsgd", "data.name": "digits"})
    assert experiment.algorithm == "D-PSGD"
    with pytest.raises(ConfigError, match="learning_rat"):
        upwash.Experiment(config, overrides={"training.learning_rat": 0.1})


def test_models_larger_than_memory_are_refused():
    with pytest.raises(upwash.UpwashError, match="memory|GB"):
        upwash.train({"model": "mlp:100000000", "graph.topology": "ring:4"}, progress=False)


def test_a_graph_of_ones_own_is_trained_on_and_kept(tmp_path):
    graph = upwash.Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    run = upwash.train({"graph": graph, "training.epochs": 1}, out=tmp_path / "run", progress=False)
    assert run.graph == graph
    assert (tmp_path / "run" / "graph.matchings").is_file()


def test_data_of_ones_own_is_trained_on():
    train, test = clouds(400, 0), clouds(100, 1)
    with pytest.warns(UserWarning, match="256 levels"):
        data = upwash.Dataset(train, test, name="clouds")
    run = upwash.train(
        {"model": "softmax", "training.epochs": 5, "graph.topology": "ring:4"}, data=data, progress=False
    )
    assert run.summary.mean_accuracy > 0.9
    assert run.config["data"]["name"] == "custom:clouds"


def test_values_that_fit_into_bytes_are_kept_exactly(recwarn):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 4))
    labels = np.arange(40) % 2
    whole = upwash.Dataset((pixels, labels), (pixels, labels))
    parts = upwash.Dataset(((pixels / 255).astype(np.float32), labels), (pixels / 255, labels))
    config = {"graph.topology": "ring:2"} | {"model": "softmax"}
    batches = [upwash.Experiment(config, data=data).batch(0, 0)[0] for data in (whole, parts)]
    np.testing.assert_array_equal(*batches)
    assert not recwarn.list


def test_batches_are_those_of_the_data():
    pixels = np.arange(32 * 4, dtype=np.uint8).reshape(32, 2, 2)
    labels = np.arange(32) % 4
    experiment = upwash.Experiment(
        {"graph.topology": "ring:2", "model": "softmax"}, data=((pixels, labels), (pixels, labels))
    )
    values, found = experiment.batch(1, 3)
    indices = experiment.indices(1, 3)
    assert set(indices) <= set(experiment.shards[1])
    np.testing.assert_array_equal(found, labels[indices])
    scaled = (pixels / 255 - (pixels / 255).mean()) / (pixels / 255).std()
    np.testing.assert_allclose(values[:, 0], scaled[indices], atol=1e-5)


def test_interrupted_runs_are_resumed_with_the_same_bits(tmp_path, run):
    def stop(event):
        if event.event == "round" and event.round == 7:
            raise upwash.StopTraining

    part = upwash.train(SMALL, out=tmp_path / "run", callbacks=stop, progress=False)
    assert part.status == "interrupted"
    assert part.events["round"].max() == 8  # the first round that was not run
    assert part.summary.mean_accuracy is None
    with pytest.raises(RunDirectoryError, match="it is interrupted: only a finished run has one; continue it"):
        part.model()
    whole = upwash.train(SMALL, out=tmp_path / "run", resume=True, progress=False)
    assert whole.status == "finished"
    for name, tensor in run.model().items():
        np.testing.assert_array_equal(whole.model()[name], tensor)
    # A run that is over is not run again.
    assert upwash.train(SMALL, out=tmp_path / "run", resume=True, progress=False).status == "finished"


def test_runs_that_failed_or_were_killed_are_cut_off(tmp_path):
    class Fails(upwash.Algorithm):
        def plan(self, view):
            raise ZeroDivisionError("mine")

    class Stops(upwash.Algorithm):
        def plan(self, view):
            raise upwash.StopTraining

    for algorithm, kind, text in (
        (Fails(), ZeroDivisionError, "mine"),
        (Stops(), AlgorithmError, "only from a callback"),
    ):
        out = tmp_path / kind.__name__
        with pytest.raises(kind, match=text):
            upwash.train(SMALL, algorithm=algorithm, out=out, progress=False)
        assert upwash.load(out)[0].status == "cut off"
    code = f"""
import os, upwash
def end(event):
    if event.event == "round":
        print(upwash.load({str(tmp_path / "killed")!r})[0].status, flush=True)
        os._exit(0)
upwash.train({SMALL!r}, out={str(tmp_path / "killed")!r}, callbacks=end, progress=False)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    run = upwash.load(tmp_path / "killed")[0]
    assert (done.stdout.strip(), run.status) == ("running", "cut off")
    for read in (run.model, lambda: run.summary):
        with pytest.raises(RunDirectoryError, match="it is cut off.*resume=True"):
            read()
    assert "cut off" in run._repr_html_()
    assert upwash.train(SMALL, out=run.path, resume=True, progress=False).status == "finished"


def test_callbacks_see_every_event_before_the_run_goes_on(run):
    seen = []
    other = upwash.train(SMALL, callbacks=[seen.append], progress=False)
    assert [event.to_dict() for event in seen] == list(other._events())
    assert other.summary.mean_accuracy == run.summary.mean_accuracy
    assert seen[0].event == "started"


def test_an_exception_in_a_callback_ends_the_run_and_is_raised(tmp_path):
    def broken(event):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        upwash.train(SMALL, out=tmp_path / "run", callbacks=broken, progress=False)
    assert "resume=True" in caught.value.__notes__[0]
    assert upwash.load(tmp_path / "run")[0].status == "interrupted"
    assert upwash.train(SMALL, out=tmp_path / "run", resume=True, progress=False).status == "finished"


def test_summaries_are_compared_with_their_arrays(run):
    again = upwash.load(run.path)[0].summary
    record = upwash.Record({"losses": [1.0, 2.0], "worker": {"losses": [1.0]}})
    assert again == run.summary
    assert record == {"losses": np.array([1.0, 2.0]), "worker": {"losses": (1.0,)}}
    assert record != {"losses": [1.0, 3.0], "worker": {"losses": [1.0]}}
    assert record != 3


def test_pages_figures_and_html(run, tmp_path):
    html = run._repr_html_()
    assert html.count("<svg") >= 3
    assert "<table>" in html
    runs = upwash.load(run.path, run.path)
    assert runs.report(tmp_path / "page.html").read_text().startswith("<!")
    assert len(runs.table()) == 2
    assert runs._repr_html_().count("<svg") >= 1
    assert run.save(tmp_path / "kept").summary == run.summary


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"trainng": {"epochs": 2}}, "did you mean `training`"),
        ({"training.learning_rat": 0.1}, "did you mean `learning_rate`"),
        ({"training.epochs": "many"}, "epochs"),
        ({"training.epochs": 0}, "from 1 to"),
        ({"training.learning_rate": float("nan")}, "learning_rate"),
        ({"training": 3, "training.epochs": 2}, "cannot be a section"),
        ({"algorithm.name": "al-dsdg"}, "al-dsgd"),
        ({"model": object()}, "type object"),
        ({1: 2}, "not a string"),
        ("missing.toml", "cannot read missing.toml"),
        ("missing", "a dict or the path of a TOML file"),
        ({"graph.topology": "ring:8", "workers": 3}, "workers = 3"),
    ],
)
def test_invalid_configurations_are_refused(config, text):
    with pytest.raises(ConfigError, match=text):
        upwash.train(config, progress=False)


@pytest.mark.parametrize("text", ["[graph", "seed = -1", 'workers = 3\ngraph.topology = "ring:4"'])
def test_errors_name_the_file_of_the_configuration(text, tmp_path):
    config = tmp_path / "bad.toml"
    config.write_text(text)
    for read in (upwash.Experiment, lambda config: upwash.train(config, progress=False)):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(config))}: [^:]") as caught:
            read(config)
        assert str(caught.value).count("bad.toml") == 1


def test_an_unknown_data_set_is_named():
    with pytest.raises((DataError, ConfigError), match="imagenet"):
        upwash.train({"data.name": "imagenet"}, progress=False)


def test_a_missing_folder_of_images_is_an_error_of_the_data():
    with pytest.raises(DataError, match="nowhere"):
        upwash.Experiment({"data.name": "images:nowhere"})


@pytest.mark.parametrize(
    ("train", "test", "text"),
    [
        ((np.zeros((4, 2)), [0, 1, 0]), None, "as many labels"),
        ((np.zeros(4), [0, 1, 0, 1]), None, "shape"),
        ((np.zeros((4, 2)), [0, 1, 0, 0.5]), None, "integers from 0 to 255"),
        ((np.zeros((4, 2)), [0, 1, 0, 256]), None, "integers from 0 to 255"),
        ((np.full((4, 2), np.nan), [0, 1, 0, 1]), None, "not finite"),
        ((np.array([["a"]]), [0]), None, "expected numbers"),
        ((np.zeros((4, 2)), [0, 1, 0, 1]), (np.zeros((4, 3)), [0, 1, 0, 1]), "test examples"),
        ((np.zeros((0, 2)), []), None, "none of them 0"),
    ],
)
def test_invalid_data_is_refused(train, test, text):
    with pytest.raises(DataError, match=text):
        upwash.Dataset(train, test or train)


def test_ragged_data_is_refused():
    good, other = (np.zeros((2, 2)), 0), (np.zeros((2, 3)), 1)
    for items, text in (
        ([good, good, other], r"example 2 has the shape \(2, 3\), but the first one \(2, 2\): bring all"),
        ([good, ([[1], [1, 2]], 0)], "no array of numbers"),
        ([good, (np.zeros((2, 2)), "seven")], "with a label: .*seven"),
    ):
        with pytest.raises(DataError, match=text):
            upwash.Dataset.of(items, items)
    with pytest.raises(DataError, match="labels: expected a list of integers"):
        upwash.partition([[0], [1, 2]], 2)


def test_what_cannot_be_saved_is_an_error_of_the_directory(run, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for save in (run.save, run.report, upwash.Graph("ring:4").draw().save):
        with pytest.raises(RunDirectoryError, match="cannot (copy|write) .*file"):
            save(file / "inner")
    with pytest.raises(RunDirectoryError, match="cannot copy .*file"):
        run.save(file)
    with pytest.raises(RunDirectoryError, match="is not empty"):
        run.save(tmp_path)


def test_numbers_that_no_run_has_are_refused():
    points = (np.zeros((4, 2)), [0, 1, 0, 1])
    with pytest.raises(DataError, match="classes = 1000000000000: must be from 1 to 256"):
        upwash.Dataset(points, points, classes=10**12)
    experiment = upwash.Experiment(SMALL)
    for each in (experiment.batch, experiment.indices, lambda worker, round: experiment.schedule.round(round)):
        with pytest.raises(ConfigError, match="round 18446744073709551615: rounds are numbered from 0 to"):
            each(0, 2**64 - 1)
    sampler, labels = upwash.Sampler([0, 1] * 20, 2, 0, 4), [0, 1] * 20
    for call in (
        lambda: experiment.batch(-1, 0),
        lambda: experiment.indices(0, -1),
        lambda: experiment.initial_model(-1),
        lambda: experiment.schedule.round(-1),
        lambda: sampler.batch(-1),
        lambda: upwash.Sampler(labels, 2, -1, 4),
        lambda: upwash.Sampler(labels, 2, 0, -1),
        lambda: upwash.partition(labels, -1),
        lambda: upwash.partition(labels, 2, seed=-1),
    ):
        with pytest.raises(ConfigError, match="-1 is out of range: expected a whole number from 0"):
            call()


def test_directories_in_use_or_occupied_are_refused(tmp_path):
    def again(event):
        if event.event == "started":
            for resume in (False, True):
                with pytest.raises(RunDirectoryError, match="holds a run|is writing"):
                    upwash.train(SMALL, out=tmp_path / "run", resume=resume, progress=False)

    upwash.train(SMALL, out=tmp_path / "run", callbacks=again, progress=False)
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        upwash.train(SMALL, out=tmp_path / "run", progress=False)
    with pytest.raises(RunDirectoryError, match="holds another run"):
        upwash.train({}, out=tmp_path / "run", resume=True, progress=False)
    with pytest.raises(RunDirectoryError, match="there is no folder"):
        upwash.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"threads": 0}, "threads = 0: must be from 1 to 1024"),
        ({"resume": True}, "out="),
        ({"transport": "tcp"}, "tcp"),
    ],
)
def test_arguments_out_of_range_are_value_errors(arguments, text):
    with pytest.raises(ConfigError, match=text):
        upwash.train(**{"config": SMALL, "progress": False} | arguments)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.learning_rat", 0.1),
        ("training.epochs", 0),
        ("training.epochs", "many"),
        ("algorithm.name", "al-dsdg"),
        ("graph.topology", "rign:8"),
        ("graph.topology", "ring:1"),
        ("data.partition", "shards:0"),
        ("data.name", "imagenet"),
        ("model", "mlp:0"),
    ],
)
def test_errors_have_the_texts_of_the_program(program, key, value, tmp_path):
    with pytest.raises(upwash.UpwashError) as caught:
        upwash.train({}, overrides={key: value}, progress=False)
    config = tmp_path / "config.toml"
    config.write_text("")
    command = [program, "train", config, "--set", f"{key}={json.dumps(value)}", "--out", tmp_path / "run"]
    printed = subprocess.run(command, capture_output=True, text=True).stderr
    assert " ".join(str(caught.value).split()) in " ".join(printed.split())


@pytest.mark.parametrize(
    "arguments",
    [{"config": 3}, {"threads": "2"}, {"threads": True}, {"callbacks": [3]}, {"data": 3}, {"algorithm": 3}],
)
def test_arguments_of_wrong_types_are_type_errors(arguments):
    with pytest.raises(TypeError):
        upwash.train(**{"config": SMALL, "progress": False} | arguments)


def test_seeds_count_from_the_one_of_the_configuration():
    small = {"graph.topology": "ring:3", "model": "softmax", "training": {"epochs": 1}}
    found = upwash.sweep(small, {"seed": [5, 6]}, progress=False)
    assert [run.config["seed"] for runs in found.groups.values() for run in runs] == [5, 6]
    one = upwash.compare({"mine": {**small, "seed": 9}}, seeds=2, progress=False)
    assert [run.config["seed"] for run in one.groups["mine"]] == [9, 10]
    with pytest.raises(ConfigError, match="each can be used once"):
        upwash.compare({"mine": small}, seeds=[1, 1], progress=False)


def test_an_empty_folder_name_is_refused():
    with pytest.raises(ConfigError, match="name a folder"):
        upwash.train(SMALL, out="", progress=False)
