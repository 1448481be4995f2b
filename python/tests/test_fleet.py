"""Fleets: the losses of `upwash.train`, any optimizer, and what happens to wrong input."""

import contextlib
import copy
import io
import itertools
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import upwash  # noqa: E402
from upwash.errors import AlgorithmError, ConfigError, DataError, RunDirectoryError, RunError  # noqa: E402
from upwash.torch import Fleet  # noqa: E402
from upwash.torch._fleet_batches import identity  # noqa: E402
from upwash.torch._fleet_capture import CaptureError  # noqa: E402
from upwash.torch._fleet_mixing import compressed  # noqa: E402
from upwash.torch._fleet_vectors import Rows  # noqa: E402

F = torch.nn.functional
torch.set_num_threads(1)

METROPOLIS, PLAIN, STAR = {"weights": "metropolis"}, {}, {"topology": "star:9"}
CASES = {
    "dpsgd": (METROPOLIS, {"name": "dpsgd"}),
    "dpsgd-overlap": (METROPOLIS, {"name": "dpsgd", "overlap": True}),
    "matcha": (PLAIN, {"name": "matcha"}),
    "gossip-pga": (METROPOLIS, {"name": "gossip-pga", "period": 4}),
    "choco-top-k": (METROPOLIS, {"name": "choco"}),
    "choco-random-k": (METROPOLIS, {"name": "choco", "compressor": "random-k"}),
    "choco-sign": (METROPOLIS, {"name": "choco", "compressor": "sign"}),
    "choco-eight-bit": (METROPOLIS, {"name": "choco", "compressor": "eight-bit"}),
    "d2": (METROPOLIS, {"name": "d2"}),
    "gradient-tracking": (METROPOLIS, {"name": "gradient-tracking"}),
    "sgp": (PLAIN, {"name": "sgp"}),
    "sgp-exponential": ({"links": "exponential"}, {"name": "sgp"}),
    "all-reduce": (PLAIN, {"name": "all-reduce"}),
    "local-sgd": (PLAIN, {"name": "local-sgd", "period": 4}),
    "slowmo": (PLAIN, {"name": "slowmo", "slow_period": 5}),
    "slowmo-d2": (METROPOLIS, {"name": "slowmo", "base": "d2", "slow_period": 5}),
    "parameter-server": (STAR, {"name": "parameter-server"}),
    "easgd": (STAR, {"name": "easgd", "period": 2}),
    "lsgd": (PLAIN, {"name": "lsgd", "period": 2}),
    "al-dsgd": (METROPOLIS, {"name": "al-dsgd"}),
    "al-dsgd-written": (METROPOLIS, {"name": "al-dsgd", "variant": "written"}),
    "al-dsgd-released-matcha": (PLAIN, {"name": "al-dsgd", "variant": "released", "base": "matcha"}),
    "al-dsgd-overlap": (METROPOLIS, {"name": "al-dsgd", "overlap": True}),
    "al-dsgd-gossip-pga": (METROPOLIS, {"name": "al-dsgd", "base": "gossip-pga", "period": 4}),
    "al-dsgd-choco": (METROPOLIS, {"name": "al-dsgd", "base": "choco"}),
    "al-dsgd-copies": ({**METROPOLIS, "copies": 3, "relabelings": "paper"}, {"name": "al-dsgd"}),
    "dpsgd-clip": (METROPOLIS, {"name": "dpsgd", "robust": "clip"}),
}
OWN_MOMENTUM = {"qg-momentum"}
# A rounding error can change which of two levels is sent, so that later losses differ by more than it.
QUANTIZED = {"choco-sign", "choco-eight-bit"}


def configuration(name, momentum=0.0, rate=0.05, **training):
    graph, algorithm = CASES[name]
    training = {"epochs": 6, "learning_rate": rate, "momentum": momentum, "weight_decay": 0.0, **training}
    return {"model": "softmax", "graph": graph, "algorithm": algorithm, "training": training}


def softmax(experiment):
    """Makes the models from which the workers of an experiment start."""
    workers = itertools.count()

    def make():
        model = torch.nn.Linear(64, 10)
        start = experiment.initial_model(next(workers))
        model.load_state_dict({name: torch.from_numpy(start[f"1.{name}"]) for name in ("weight", "bias")})
        return model

    return make


def batches(experiment, round):
    workers = [worker for worker in range(experiment.workers) if worker != experiment.server]
    pairs = [experiment.batch(worker, round) for worker in workers]
    x = torch.stack([torch.from_numpy(values).flatten(1) for values, _ in pairs])
    return x, torch.stack([torch.from_numpy(labels) for _, labels in pairs])


def known_losses(config, experiment):
    """The losses of the workers with data in `upwash.train`."""
    run = upwash.train(config, progress=False)
    losses = np.array([event["losses"] for event in run._events() if event["event"] == "round"], dtype=float)
    return losses[:, [worker for worker in range(experiment.workers) if worker != experiment.server]]


def difference(found, known):
    return np.abs(np.array(found) - known) / np.maximum(np.abs(known), 1e-3)


def sgd(momentum=0.0, rate=0.05):
    return lambda parameters: torch.optim.SGD(parameters, rate, momentum=momentum)


@pytest.mark.filterwarnings("ignore:algorithm.robust")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_upwash_train(name, momentum):
    config = configuration(name, momentum)
    experiment = upwash.Experiment(config)
    fleet = Fleet(softmax(experiment), config=config, optimizer=sgd(momentum))
    found = [fleet.step(*batches(experiment, round), F.cross_entropy).numpy() for round in range(50)]
    away = difference(found, known_losses(config, experiment)[:50])
    if name in QUANTIZED:
        assert away[:3].max() < 1e-5 and away.max() < 0.05
    else:
        assert away.max() < 1e-5, f"{away.max(1)}"


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


def convolutional():
    """A module with batch normalization, in the format channels_last."""
    layers = [torch.nn.Conv2d(1, 3, 3, padding=1, bias=False), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(192, 10)).to(memory_format=torch.channels_last)


def linear():
    return torch.nn.Linear(64, 10)


def noise(workers, rounds, shape=(64,), seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        yield torch.randn(workers, 8, *shape, generator=generator), torch.randint(0, 10, (workers, 8), generator=generator)


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
    with pytest.raises(RunDirectoryError, match="remove it"):
        Fleet(convolutional, graph="ring:4", out=folder).step(x, y, F.cross_entropy)


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
    again = Fleet(linear, graph="ring:4", algorithm="dpsgd", equal_start=False, seed=2)
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


def test_functions_that_compute_the_same_share_a_graph():
    def weighted(weight):
        return lambda model, batch: weight * model(batch).sum()

    assert identity(weighted(1.0)) == identity(weighted(1.0)) != identity(weighted(2.0))
    assert identity(F.cross_entropy) == identity(F.cross_entropy) != identity(F.mse_loss)


class Recorder:
    """Graphs on the CPU: a capture runs nothing, and a replay runs what was captured."""

    captures = 0

    def __init__(self, failing=""):
        self.failing = failing

    def streams(self, count):
        return [self] * count

    def current(self):
        return self

    def wait_stream(self, other):
        pass

    def on(self, stream):
        return contextlib.nullcontext()

    def pinned(self, tensor):
        return tensor.clone()

    def mark(self):
        return self

    def query(self):
        return True

    def warm_up(self, body):
        body()

    def capture(self, body):
        self.captures += 1
        if self.failing:
            raise CaptureError(self.failing)
        return SimpleNamespace(replay=body)


def with_graphs(fleet, recorder):
    fleet._gradients.use_graphs(recorder)
    fleet._update.use_graphs(recorder)
    return fleet


@pytest.mark.parametrize("name", ["al-dsgd", "choco-random-k", "d2", "gossip-pga", "easgd", "lsgd", "dpsgd-clip", "slowmo"])
@pytest.mark.parametrize("optimizer", [sgd(0.9), lambda parameters: torch.optim.AdamW(parameters, 0.01)])
@pytest.mark.filterwarnings("ignore:algorithm.robust")
def test_replayed_steps_are_those_that_run_eagerly(name, optimizer):
    graph, algorithm = CASES[name]

    def losses(prepare):
        fleet = prepare(Fleet(linear, config={"graph": graph, "algorithm": algorithm}, optimizer=optimizer))
        scheduler = torch.optim.lr_scheduler.StepLR(fleet.optimizer, 4, 0.5)
        found = []
        for round, (x, y) in enumerate(noise(8, 24)):
            size = 5 if round % 5 == 4 else 8  # a short last batch
            found.append(fleet.step(x[:, :size], y[:, :size], lambda output, y: F.cross_entropy(output, y)))
            scheduler.step()
        return torch.stack(found), fleet

    known, eager = losses(lambda fleet: fleet)
    found, fleet = losses(lambda fleet: with_graphs(fleet, Recorder()))
    assert torch.allclose(found, known, rtol=1e-5)
    assert torch.allclose(fleet._store.model, eager._store.model, atol=1e-5)
    assert fleet.captured == {"gradients": True, "optimizer": True, "exchange": True}
    assert eager.captured == {"gradients": False, "optimizer": False, "exchange": False}
    assert isinstance(fleet.optimizer.param_groups[0]["lr"], float)


class Lion(torch.optim.Optimizer):
    """Keeps its rate in Python."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.001})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


def test_what_cannot_be_captured_runs_eagerly_and_says_so():
    fleet = Fleet(linear, graph="ring:4", algorithm="dpsgd", optimizer=Lion)
    known = Fleet(linear, graph="ring:4", algorithm="dpsgd", optimizer=Lion)
    with pytest.warns(UserWarning, match="optimizer's step runs eagerly.*Lion has no option capturable"):
        with_graphs(fleet, Recorder("no .item() here"))
    with pytest.warns(UserWarning, match="no .item") as caught:
        for x, y in noise(4, 8):
            found = fleet.step(x, y, F.cross_entropy)
            assert torch.equal(found, known.step(x, y, F.cross_entropy))
    said = sorted(str(warning.message).split(" runs")[0] for warning in caught)
    assert said == ["the exchange", "the gradient computation"]
    assert not any(fleet.captured.values())


def test_options_that_change_are_captured_again():
    recorder = Recorder()
    fleet = with_graphs(Fleet(linear, graph="ring:4", algorithm="dpsgd", optimizer=sgd(0.9)), recorder)
    data = list(noise(4, 1)) * 4
    for x, y in data:
        fleet.step(x, y, F.cross_entropy)
    captures = recorder.captures
    fleet.optimizer.param_groups[0]["momentum"] = 0.5
    for x, y in data:
        fleet.step(x, y, F.cross_entropy)
    assert recorder.captures == captures + 1
    fleet.load_state_dict(fleet.state_dict())
    for x, y in data:
        fleet.step(x, y, F.cross_entropy)
    assert fleet.captured["optimizer"] and recorder.captures == captures + 2
    # New losses in every step are too many graphs.
    with pytest.warns(UserWarning, match="other forms of batches and losses.*pad batches"):
        for weight in range(8):
            fleet.step(x, y, lambda output, y, weight=weight: weight * F.cross_entropy(output, y))


SHARED = torch.nn.Linear(64, 10)
ONCE = torch.nn.Linear(64, 10)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ONCE, "same module twice"),
        (lambda: torch.nn.Sequential(SHARED), "share the parameter 0.weight"),
        (lambda: linear().double(), "weight of replica 0 is float64.*autocast"),
        (lambda: torch.nn.ReLU(), "no parameters"),
        (lambda: torch.nn.LazyLinear(10), "no shape yet"),
        (lambda: torch.nn.Sequential(linear(), torch.nn.Linear(10, 10, device="meta")), "several devices.*device="),
    ],
)
def test_wrong_models(make, text):
    with pytest.raises(ConfigError, match=text):
        Fleet(make, graph="ring:4", algorithm="dpsgd")


def test_models_of_different_shapes():
    widths = itertools.count(3)
    with pytest.raises(ConfigError, match=r"weight has the shape \(10, 4\) in replica 1, but \(10, 3\)"):
        Fleet(lambda: torch.nn.Linear(next(widths), 10), graph="ring:4")
    with pytest.raises(TypeError, match="returned a int"):
        Fleet(lambda: 3, graph="ring:4")


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"algorithm": "nothing"}, ConfigError, "nothing"),
        ({"algorithm": 3}, TypeError, "a name or an instance"),
        ({"budgett": 0.5}, ConfigError, "budgett"),
        ({"workers": 5, "graph": "ring:4"}, ConfigError, "workers = 5.*4 nodes"),
        ({"workers": 0}, ConfigError, "at least 1"),
        ({"rounds": 0}, ConfigError, "at least 1"),
        ({"statistics": "shared"}, ConfigError, "shared"),
        ({"capture": True}, ConfigError, "CUDA device"),
        ({"leaders": "verified"}, ConfigError, "verified.*leave it out"),
        ({"optimizer": lambda parameters: 3}, TypeError, "returned a int"),
        ({"optimizer": lambda parameters: torch.optim.SGD(parameters[1:], 0.1)}, ConfigError, "1 of 16 parameters"),
        (
            {"optimizer": lambda parameters: torch.optim.SGD([*parameters, torch.nn.Parameter(torch.ones(1))], 0.1)},
            ConfigError,
            "not of this fleet",
        ),
    ],
)
def test_wrong_options(options, kind, text):
    with pytest.raises(kind, match=text):
        Fleet(linear, **options)


def test_wrong_steps():
    fleet = Fleet(linear, graph="ring:4", algorithm="dpsgd")
    ((x, y),) = noise(4, 1)
    for arguments, kind, text in [
        ((x[:3], y, F.cross_entropy), DataError, r"x: a tensor of shape \(3, 8, 64\).*must be 4"),
        ((list(x), list(y)[1:], F.cross_entropy), DataError, "y: 3 entries, but 4"),
        ((x, y, 3), TypeError, "not a function"),
        ((x,), TypeError, "step takes"),
        ((3, y, F.cross_entropy), TypeError, "x: a tensor or a list"),
        ((x, y, lambda output, y: output), TypeError, r"shape \(8, 10\): take its mean"),
        ((x, y, lambda output, y: 1.0), TypeError, "not float"),
        ((x, y, lambda output, y: output.detach().sum()), TypeError, "does not depend"),
    ]:
        with pytest.raises(kind, match=text):
            fleet.step(*arguments)
        fleet._is_broken = False
    fleet.step(x, y, F.cross_entropy)


def test_wrong_states():
    fleet = Fleet(linear, graph="ring:4", algorithm="d2")
    state = fleet.state_dict()
    for change, text in [
        ({"algorithm": "D-PSGD"}, "the state is of D-PSGD"),
        ({"models": state["models"][:3]}, "3 workers"),
        ({"vectors": {}}, "missing or of another model"),
        ({"models": [convolutional().state_dict()] * 4}, "load_state_dict"),
    ]:
        with pytest.raises(ConfigError, match=text):
            fleet.load_state_dict({**state, **change})
    with pytest.raises(ConfigError, match="progress missing"):
        fleet.load_state_dict({key: value for key, value in state.items() if key != "progress"})


def test_a_fleet_belongs_to_its_process():
    code = """
import os, torch, upwash
from upwash.torch import Fleet
fleet = Fleet(lambda: torch.nn.Linear(4, 2), graph="ring:4", algorithm="dpsgd")
x, y = torch.randn(4, 2, 4), torch.zeros(4, 2, dtype=torch.long)
torch.set_num_threads(1)
fleet.step(x, y, torch.nn.functional.cross_entropy)
if os.fork() == 0:
    try:
        fleet.consensus_distance()
        fleet._begin()
    except upwash.errors.RunError as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
fleet.step(x, y, torch.nn.functional.cross_entropy)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_compiled_replicas():
    compiled = Fleet(convolutional, graph="ring:2", algorithm="dpsgd", compile={"backend": "aot_eager"}, seed=1)
    plain = Fleet(convolutional, graph="ring:2", algorithm="dpsgd", seed=1)
    for x, y in noise(2, 3, (1, 8, 8)):
        found = compiled.step(x, y, F.cross_entropy)
        assert torch.allclose(found, plain.step(x, y, F.cross_entropy), rtol=1e-4)
    assert torch.allclose(compiled.models[0][1].running_mean, plain.models[0][1].running_mean, atol=1e-6)


def test_the_example_compares_four_algorithms(tmp_path):
    script = Path(__file__).parent.parent / "examples" / "fleet_compare.py"
    command = [sys.executable, script, "--rounds", "20", "--out", tmp_path / "runs"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert [run.name for run in upwash.load(tmp_path / "runs")] == ["al-dsgd", "choco", "dpsgd", "local-sgd"]
    assert len([line for line in text.splitlines() if "loss" in line]) == 4
