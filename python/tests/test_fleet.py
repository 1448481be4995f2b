"""Fleets: the losses of `upwash.train`, any optimizer, runs in directories, and resuming."""

import copy
import io
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fleets import (
    CASES,
    F,
    batches,
    configuration,
    convolutional,
    difference,
    known_losses,
    linear,
    noise,
    sgd,
    softmax,
    torch,
)

import upwash
from upwash.errors import ConfigError, RunDirectoryError, RunError
from upwash.torch import Fleet
from upwash.torch._fleet_mixing import compressed
from upwash.torch._fleet_vectors import Rows

OWN_MOMENTUM = {"decentlam", "qg-momentum"}
# A rounding error can change which of two levels is sent, or which of two entries, so that later losses differ by more.
ROUNDED = {"choco-sign": 0.05, "choco-eight-bit": 0.05, "choco-top-k": 1e-3, "al-dsgd-choco": 1e-3}


@pytest.mark.filterwarnings("ignore:algorithm.robust")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_upwash_train(name, momentum):
    config = configuration(name, momentum)
    experiment = upwash.Experiment(config)
    fleet = Fleet(softmax(experiment), config=config, optimizer=sgd(momentum))
    found = [fleet.step(*batches(experiment, round), F.cross_entropy).numpy() for round in range(50)]
    away = difference(found, known_losses(config, experiment)[:50])
    assert away[:3].max() < 1e-5 and away.max() < ROUNDED.get(name, 1e-5), f"{away.max(1)}"


def test_every_synchronous_algorithm_is_tested_or_refused(program):
    text = subprocess.run([program, "algorithms"], capture_output=True, text=True, check=True).stdout
    names, asynchronous = set(), set()
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line]
        if lines and any(line.strip().startswith("synchronous") for line in lines):
            names.add(lines[0].strip())
        elif lines and any(line.strip().startswith("asynchronous") for line in lines):
            asynchronous.add(lines[0].strip())
    assert names - OWN_MOMENTUM == {algorithm["name"] for _, algorithm in CASES.values()}
    for name in OWN_MOMENTUM:
        with pytest.raises(ConfigError, match="own momentum.*choose another"):
            Fleet(linear, algorithm=name)
    assert asynchronous
    for name in asynchronous:
        with pytest.raises(ConfigError, match="choose a synchronous algorithm"):
            Fleet(linear, algorithm=name, workers=9, graph="star:9")


@pytest.mark.parametrize("name", ["d2", "gradient-tracking", "slowmo", "al-dsgd-written"])
def test_schedulers_set_the_rate_of_plans(name):
    config = configuration(name) | {"seed": 3}
    config["training"] |= {"decay": "steps", "decay_at": [1, 2, 3], "decay_factor": 0.5}
    experiment = upwash.Experiment(config)
    fleet = Fleet(softmax(experiment), config=config, optimizer=sgd())
    epoch = experiment.rounds_per_epoch
    scheduler = torch.optim.lr_scheduler.MultiStepLR(fleet.optimizer, [epoch, 2 * epoch, 3 * epoch], 0.5)
    found = []
    for round in range(50):
        found.append(fleet.step(*batches(experiment, round), F.cross_entropy).numpy())
        scheduler.step()
    assert difference(found, known_losses(config, experiment)[:50]).max() < 1e-5


def test_adamw_is_that_of_independent_replicas_with_mixing_in_numpy():
    def adamw(parameters):
        return torch.optim.AdamW(parameters, 0.01, weight_decay=0.1)

    fleet = Fleet(convolutional, graph="ring:4", algorithm="dpsgd", optimizer=adamw)
    own = [copy.deepcopy(model) for model in fleet.models]
    optimizers = [adamw(model.parameters()) for model in own]
    mixing = upwash.Graph("ring:4").mixing()
    for x, y in noise(4, 20, (1, 8, 8)):
        found = fleet.step(x, y, F.cross_entropy)
        known = []
        for model, optimizer, image, label in zip(own, optimizers, x, y, strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(image), label)
            loss.backward()
            optimizer.step()
            known.append(loss.item())
        for parameters in zip(*(model.parameters() for model in own), strict=True):
            stepped = np.stack([parameter.detach().numpy() for parameter in parameters])
            for parameter, mixed in zip(parameters, np.tensordot(mixing, stepped, 1), strict=True):
                parameter.data.copy_(torch.from_numpy(mixed))
        assert np.allclose(found.numpy(), known, rtol=1e-5)
    for mine, other in zip(fleet.models, own, strict=True):
        for (name, tensor), known in zip(mine.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.allclose(tensor, known, rtol=1e-4, atol=1e-5), name


def test_all_tensors_are_views_into_one_matrix():
    fleet = Fleet(convolutional, graph="ring:3", algorithm="dpsgd")
    matrix = fleet._store.model
    starts = set()
    for row, model in enumerate(fleet.models):
        for parameter in model.parameters():
            offset = (parameter.data_ptr() - matrix.data_ptr()) // 4 - row * matrix.shape[1]
            assert 0 <= offset < matrix.shape[1] and offset % 64 == 0
            starts.add(offset)
            assert parameter.grad.stride() == parameter.stride()
    assert len(starts) == len(list(fleet.models[0].parameters()))
    assert fleet.models[1][0].weight.is_contiguous(memory_format=torch.channels_last)
    for x, y in noise(3, 1, (1, 8, 8)):
        fleet.step(x, y, F.cross_entropy)
    assert torch.equal(fleet.models[1][4].bias, matrix[1][fleet._store.models.slots[-1].offset :][:10])
    fleet.optimizer.zero_grad()  # removes gradients: the next step puts them back
    fleet.step(x, y, F.cross_entropy)
    gradients = fleet._gradients._matrix
    offset = (fleet.models[1][0].weight.grad.data_ptr() - gradients.data_ptr()) // 4
    assert offset == gradients.shape[1] and gradients[1].abs().sum() > 0
    # A replica is saved alone, without the others.
    file = io.BytesIO()
    torch.save(fleet.models[1].state_dict(), file)
    alone = io.BytesIO()
    torch.save(copy.deepcopy(convolutional()).state_dict(), alone)
    assert len(file.getvalue()) < len(alone.getvalue()) + 100


def test_statistics_are_averaged_only_on_request():
    def spread(statistics):
        fleet = Fleet(convolutional, graph="complete:4", algorithm="dpsgd", statistics=statistics)
        for x, y in noise(4, 3, (1, 8, 8)):
            fleet.step(x, y, F.cross_entropy)
        means = torch.stack([model[1].running_mean for model in fleet.models])
        assert torch.allclose(fleet.average()[1].running_mean, means.mean(0))
        return float((means - means.mean(0)).abs().max())

    assert spread("local") > 1e-4 and spread("averaged") < 1e-6


@pytest.mark.parametrize("name", ["al-dsgd", "slowmo", "choco-random-k", "sgp"])
def test_a_resumed_fleet_has_the_same_losses(name, tmp_path):
    graph, algorithm = CASES[name]

    def fleet(out=None):
        config = {"graph": {**graph, "topology": "ring:4"}, "algorithm": algorithm}
        made = Fleet(convolutional, config=config, out=out, rounds_per_epoch=4, optimizer=optimizer)
        return made, torch.optim.lr_scheduler.StepLR(made.optimizer, 3, 0.5)

    def optimizer(parameters):
        return torch.optim.AdamW(parameters, 0.01)

    def train(made, scheduler, data):
        losses = []
        for x, y in data:
            losses.append(made.step(x, y, F.cross_entropy))
            scheduler.step()
        return losses

    data = list(noise(4, 12, (1, 8, 8)))
    known = train(*fleet(), data)
    first, scheduler = fleet(tmp_path / "run")
    train(first, scheduler, data[:6])
    torch.save({"fleet": first.state_dict(), "scheduler": scheduler.state_dict()}, tmp_path / "state.pt")
    train(first, scheduler, data[6:9])
    first.close(interrupted=True)
    second, scheduler = fleet(tmp_path / "run")
    state = torch.load(tmp_path / "state.pt")
    second.load_state_dict(state["fleet"])
    scheduler.load_state_dict(state["scheduler"])
    assert second.round == 6
    found = train(second, scheduler, data[6:])
    assert all(torch.equal(a, b) for a, b in zip(found, known[6:], strict=True))
    second.close()
    events = [event for event in upwash.load(tmp_path / "run")[0]._events() if event["event"] == "round"]
    assert [event["round"] for event in events] == list(range(12))


def test_a_fleet_writes_a_run_directory(tmp_path, program):
    folder = tmp_path / "run"
    with Fleet(convolutional, graph="ring:4", algorithm="al-dsgd", out=folder, rounds_per_epoch=5) as fleet:
        for x, y in noise(4, 12, (1, 8, 8)):
            losses = fleet.step(x, y, F.cross_entropy)
        distance = fleet.consensus_distance()
    run = upwash.load(folder)[0]
    # A fleet knows no accuracies.
    assert repr(upwash.compare({"mine": upwash.load(folder)})) == "mine: no accuracy, 1 seeds"
    assert run.status == fleet.summary.status == "finished"
    assert run.summary.consensus_distance == pytest.approx(distance)
    assert len(run._epoch_rows()) == 8
    assert run.config["model"] == "custom:Sequential" and run.config["training"]["batch_size"] == 8
    rounds = [event for event in run._events() if event["event"] == "round"]
    assert np.allclose(rounds[-1]["losses"], losses.numpy())
    assert any(event.get("leaders") for event in rounds)
    average = fleet.average().state_dict()
    for name, tensor in run.model("torch").items():
        assert torch.equal(tensor, average[name]), name
    shown = subprocess.run([program, "show", folder], capture_output=True, text=True, check=True).stdout
    assert "AL-DSGD" in shown
    subprocess.run([program, "report", folder, "-o", tmp_path / "page.html"], capture_output=True, check=True)
    with pytest.raises(RunError, match="closed"):
        fleet.step(x, y, F.cross_entropy)
    with pytest.raises(RunDirectoryError, match="remove it"), Fleet(convolutional, graph="ring:4", out=folder) as fleet:
        fleet.step(x, y, F.cross_entropy)
    assert upwash.load(folder)[0].status == "finished"


def test_rounds_end_the_run(tmp_path):
    fleet = Fleet(linear, graph="ring:4", algorithm="dpsgd", rounds=3, out=tmp_path / "run")
    ((x, y),) = noise(4, 1)
    count = 0
    while not fleet.is_over:
        fleet.step(x, y, F.cross_entropy)
        count += 1
    assert count == fleet.round == 3
    with pytest.raises(RunError, match="the run is over"):
        fleet.step(x, y, F.cross_entropy)
    fleet.close()
    assert fleet.summary.status == "finished"


def test_a_request_to_stop_ends_the_run(tmp_path):
    fleet = Fleet(linear, graph="ring:4", algorithm="dpsgd", out=tmp_path / "run")
    ((x, y),) = noise(4, 1)
    fleet.step(x, y, F.cross_entropy)
    (tmp_path / "run" / "control-stop").touch()
    deadline = time.monotonic() + 60
    while not fleet.is_over and time.monotonic() < deadline:
        time.sleep(0.01)  # requests are looked for every 0.1 seconds
        fleet.step(x, y, F.cross_entropy)
    fleet.close()
    assert fleet.summary.status == upwash.load(tmp_path / "run")[0].status == "interrupted"


def test_a_fleet_that_is_not_closed_is_interrupted(tmp_path):
    code = f"""
import torch
from upwash.torch import Fleet
fleet = Fleet(lambda: torch.nn.Linear(4, 2), graph="ring:4", algorithm="dpsgd", out={str(tmp_path / "run")!r})
fleet.step(torch.randn(4, 2, 4), torch.zeros(4, 2, dtype=torch.long), torch.nn.functional.cross_entropy)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert upwash.load(tmp_path / "run")[0].status == "interrupted"


def test_an_exception_interrupts_the_run(tmp_path):
    ((x, y),) = noise(4, 1)
    with pytest.raises(ZeroDivisionError):
        with Fleet(linear, graph="ring:4", algorithm="dpsgd", out=tmp_path / "run") as fleet:
            fleet.step(x, y, F.cross_entropy)
            raise ZeroDivisionError
    assert upwash.load(tmp_path / "run")[0].status == "interrupted"


def test_a_loss_that_is_not_a_number_ends_the_run(tmp_path):
    fleet = Fleet(linear, graph="ring:4", algorithm="dpsgd", out=tmp_path / "run")
    ((x, y),) = noise(4, 1)
    fleet.step(x, y, F.cross_entropy)
    x[2] = torch.nan
    before = fleet._store.model.clone()
    with pytest.raises(RunError, match="diverged: the loss of worker 2 in round 1.*learning rate"):
        fleet.step(x, y, F.cross_entropy)
    assert torch.equal(before, fleet._store.model)
    assert fleet.is_over and upwash.load(tmp_path / "run")[0].status == "diverged"


def test_a_model_that_is_not_finite_spoils_only_its_neighbors():
    fleet = Fleet(linear, graph="ring:6", algorithm="dpsgd")
    ((x, y),) = noise(6, 1)
    fleet.models[0].weight.register_hook(lambda gradient: gradient * torch.nan)
    fleet.step(x, y, F.cross_entropy)
    finite = [bool(torch.isfinite(model.weight).all()) for model in fleet.models]
    assert finite == [False, False, True, True, True, False]


class FollowTheBest(upwash.Algorithm):
    """Every worker averages its model with that of the neighbor with the lowest loss."""

    def plan(self, view):
        best = min(view.received, key=lambda message: message.loss, default=view)
        return [(view.worker, 0.5), (best.worker, 0.5)]


def test_algorithms_in_python():
    config = configuration("dpsgd")
    experiment = upwash.Experiment(config, algorithm=FollowTheBest())
    fleet = Fleet(softmax(experiment), config=config, algorithm=FollowTheBest(), optimizer=sgd())
    found = [fleet.step(*batches(experiment, round), F.cross_entropy).numpy() for round in range(20)]
    run = upwash.train(config, algorithm=FollowTheBest(), progress=False)
    known = np.array([event["losses"] for event in run._events() if event["event"] == "round"])[:20]
    assert difference(found, known).max() < 1e-5

    class Broken(FollowTheBest):
        def plan(self, view):
            if view.round == 1:
                raise ZeroDivisionError("in my plan")
            return super().plan(view)

    fleet = Fleet(linear, graph="ring:4", algorithm=Broken())
    ((x, y),) = noise(4, 1)
    fleet.step(x, y, F.cross_entropy)
    with pytest.raises(ZeroDivisionError, match="in my plan"):
        fleet.step(x, y, F.cross_entropy)
    with pytest.raises(RunError, match="interrupted halfway"):
        fleet.step(x, y, F.cross_entropy)


def test_batches_may_have_any_structure():
    def loss(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"]) * batch["weight"]

    ((x, y),) = noise(4, 1)
    one = Fleet(linear, graph="ring:4", algorithm="dpsgd", seed=5)
    other = Fleet(linear, graph="ring:4", algorithm="dpsgd", seed=5)
    known = one.step(list(x), list(y), F.cross_entropy)
    found = other.step([{"x": x[i], "y": y[i], "weight": 1.0} for i in range(4)], loss)
    assert torch.equal(known, found)
    assert torch.equal(one._store.model, other._store.model)


def test_autocast_and_frozen_parameters_and_server_rows():
    def make():
        model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Linear(16, 10))
        model[0].requires_grad_(False)
        return model

    fleet = Fleet(make, algorithm="easgd", graph="star:5", autocast=torch.bfloat16, optimizer=sgd(0.9, 0.1))
    frozen = fleet.models[2][0].weight.clone()
    server = fleet.models[0][1].weight.clone()
    for x, y in noise(4, 3):
        losses = fleet.step(x, y, F.cross_entropy)
    assert losses.shape == (4,) and torch.equal(frozen, fleet.models[2][0].weight)
    assert not torch.equal(server, fleet.models[0][1].weight)
    assert torch.equal(fleet.average()[1].weight, fleet.models[0][1].weight)


def test_equal_start_and_seeds():
    equal = Fleet(linear, graph="ring:4", algorithm="dpsgd", equal_start=True, seed=2)
    assert all(torch.equal(model.weight, equal.models[0].weight) for model in equal.models)
    different = Fleet(linear, graph="ring:4", algorithm="dpsgd", equal_start=False, seed=2)
    assert not torch.equal(different.models[1].weight, different.models[0].weight)
    state = torch.random.get_rng_state()
    again = Fleet(linear, graph="ring:4", algorithm="dpsgd", equal_start=False, seed=2)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(different._store.model, again._store.model)


def test_compression_gives_the_numbers_of_the_library():
    rows = Rows.of({"a": torch.zeros(3), "b": torch.zeros(2)}, 1, torch.device("cpu"))
    positions = rows.positions()
    vector = torch.zeros(1, len(positions))
    vector[0, positions >= 0] = torch.tensor([3.0, -1.0, 0.0, 0.5, -4.0])
    used = vector[:, positions >= 0]

    def known(*arguments):
        result = compressed(vector.clone(), *arguments)
        assert not result[:, positions < 0].any()
        return result[:, positions >= 0].tolist()[0]

    assert known("top-k", 2, positions, 5, None) == [3, 0, 0, 0, -4]
    size = float(used.abs().mean())
    assert known("sign", 5, positions, 5, None) == pytest.approx([size, -size, size, size, -size])
    scale = 4 / 127
    assert known("eight-bit", 5, positions, 5, None) == pytest.approx(
        [round(x / scale) * scale for x in used.tolist()[0]]
    )
    draws = torch.tensor([[2, 3, 2]])  # indices i with (3 + 2 i) mod 5 below 2: 1 and 4
    assert known("random-k", 2, positions, 5, draws) == [0, -1, 0, 0, -4]


def test_the_example_compares_four_algorithms(tmp_path):
    script = Path(__file__).parent.parent / "examples" / "fleet_compare.py"
    command = [sys.executable, script, "--rounds", "20", "--out", tmp_path / "runs"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert [run.name for run in upwash.load(tmp_path / "runs")] == ["al-dsgd", "choco", "dpsgd", "local-sgd"]
    assert len([line for line in text.splitlines() if "loss" in line]) == 4
