"""What tests of fleets share."""

import contextlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import upwash  # noqa: E402
from upwash.torch._fleet_capture import CaptureError  # noqa: E402

F = torch.nn.functional
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
    "diloco": (PLAIN, {"name": "diloco", "period": 5}),
    "noloco": (PLAIN, {"name": "noloco", "period": 3}),
    "epidemic": (PLAIN, {"name": "epidemic"}),
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


def convolutional():
    """A module with batch normalization, in the format channels_last."""
    layers = [
        torch.nn.Conv2d(1, 3, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
    ]
    return torch.nn.Sequential(*layers, torch.nn.Linear(192, 10)).to(memory_format=torch.channels_last)


def linear():
    return torch.nn.Linear(64, 10)


def noise(workers, rounds, shape=(64,), seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        yield (
            torch.randn(workers, 8, *shape, generator=generator),
            torch.randint(0, 10, (workers, 8), generator=generator),
        )


class Writes(TorchDispatchMode):
    """Counts the operations that write to a tensor."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.count += function._schema.is_mutable
        return function(*arguments, **(keywords or {}))


class Recorder:
    """Graphs on the CPU: a capture runs nothing, and a replay runs what was captured. None may be empty: CUDA warns."""

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
        return SimpleNamespace(replay=lambda: self.replay(body))

    def replay(self, body):
        with Writes() as writes:
            body()
        assert writes.count, "an empty graph"


def with_graphs(fleet, recorder):
    fleet._gradients.use_graphs(recorder)
    fleet._update.use_graphs(recorder)
    return fleet
