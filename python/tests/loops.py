"""Training loops that tests run in several processes: `python -m upwash.launch -n 4 loops.py NAME FOLDER`."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import upwash
import upwash.torch as ut

torch.set_num_threads(1)

WORKERS = 4
ROUNDS = 50
BASE = {
    "model": "softmax",
    "graph": {"topology": "ring:4"},
    "data.partition": "shards:2",
    "training": {"batch_size": 8, "learning_rate": 0.05},
}

# Every synchronous algorithm, and the forms of those that have several.
ALGORITHMS = {
    "al-dsgd": {"name": "al-dsgd", "base": "dpsgd"},
    "al-dsgd-written": {"name": "al-dsgd", "base": "dpsgd", "variant": "written"},
    "al-dsgd-matcha": {"name": "al-dsgd", "base": "matcha", "budget": 0.5},
    "all-reduce": {"name": "all-reduce"},
    "choco": {"name": "choco"},
    "d2": {"name": "d2"},
    "dpsgd": {"name": "dpsgd"},
    "dpsgd-overlap": {"name": "dpsgd", "overlap": True, "lazy": True},
    "diloco": {"name": "diloco", "period": 5},
    "easgd": {"name": "easgd"},
    "epidemic": {"name": "epidemic"},
    "gossip-pga": {"name": "gossip-pga"},
    "gradient-tracking": {"name": "gradient-tracking"},
    "local-sgd": {"name": "local-sgd"},
    "lsgd": {"name": "lsgd"},
    "matcha": {"name": "matcha", "budget": 0.5},
    "noloco": {"name": "noloco", "period": 3},
    "parameter-server": {"name": "parameter-server"},
    "sgp": {"name": "sgp"},
    "slowmo": {"name": "slowmo"},
}


# Peers refuse those that do not survive the loss of a worker.
BETWEEN_PROCESSES = [name for name in ALGORITHMS if name not in ("easgd", "lsgd", "parameter-server")]


def configuration(name: str, momentum: float) -> dict:
    training = {**BASE["training"], "momentum": momentum, "epochs": 3}
    graph = {"topology": "star:4"} if name in ("easgd", "parameter-server") else BASE["graph"]
    return {**BASE, "graph": graph, "algorithm": ALGORITHMS[name], "training": training}


def softmax(tensors: dict) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    return model


def agree(folder: Path) -> None:
    """Trains on the batches of `upwash train`, from its weights, with every algorithm that peers can use."""
    found = {}
    for momentum in (0.0, 0.9):
        for name in BETWEEN_PROCESSES:
            config = configuration(name, momentum)
            experiment = upwash.Experiment(config)
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
            sgd = torch.optim.SGD(model.parameters(), 0.05, momentum=momentum)
            with ut.Decentralized(sgd, model, config, rounds=ROUNDS, rounds_per_epoch=20) as opt:
                start = softmax(experiment.initial_model(opt.worker)).state_dict()
                model.load_state_dict(start)
                losses = []
                for round in range(ROUNDS):
                    opt.zero_grad()
                    if opt.worker == experiment.server:
                        opt.step(loss=None)
                        continue
                    x, y = (torch.from_numpy(part) for part in experiment.batch(opt.worker, round))
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    opt.step(loss=loss)
                    losses.append(loss.item())
            found[f"{name}/{momentum}"] = np.array(losses)
    np.savez(folder / f"worker-{opt.worker}.npz", **found)


def rank(folder: Path) -> None:
    """A rank of an MPI job: the batches of `upwash train`."""
    config = configuration("dpsgd", 0.9)
    experiment = upwash.Experiment(config)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    sgd = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    with ut.Decentralized(sgd, model, config, rounds=ROUNDS, transport="mpi", out=folder / "run") as opt:
        model.load_state_dict(softmax(experiment.initial_model(opt.worker)).state_dict())
        for round in range(ROUNDS):
            opt.zero_grad()
            x, y = (torch.from_numpy(part) for part in experiment.batch(opt.worker, round))
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step(loss=loss)
            losses.append(loss.item())
    np.save(folder / f"rank-{opt.worker}.npy", losses)


def batch_norm(channels: int = 8) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, channels, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(channels),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * channels, 10),
    )


def features(folder: Path) -> None:
    """What loops of PyTorch use, one after the other."""
    labels = np.arange(400) % 10
    images = (
        torch.randn(400, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        + torch.from_numpy(labels)[:, None, None, None]
    )
    data = torch.utils.data.TensorDataset(images, torch.from_numpy(labels))
    report = {}

    # Data in processes of their own, a compiled model, averaged statistics, overlap.
    torch.manual_seed(1)
    model = batch_norm()
    compiled = torch.compile(model, backend="aot_eager")
    sgd = torch.optim.SGD(model.parameters(), 0.05)
    opt = ut.Decentralized(
        sgd,
        model,
        algorithm={"name": "dpsgd", "lazy": True},
        overlap=True,
        statistics="averaged",
        rounds=30,
        out=folder / "run",
    )
    sampler = upwash.Sampler(labels, opt.workers, opt.worker, batch_size=20)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=2)
    losses = []
    with opt:
        while len(losses) < 30:
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(compiled(x), y)
                loss.backward()
                opt.step(loss=loss)
                losses.append(loss.item())
                if len(losses) == 30:
                    break
    report["losses"] = losses
    report["statistics"] = model[1].running_mean.tolist()

    # Only the trained part of a model travels.
    torch.manual_seed(2)
    model = batch_norm()
    model[0].requires_grad_(False)
    frozen = model[0].weight + opt.worker  # differs between workers, and stays so
    model[0].weight.data.copy_(frozen)
    with ut.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, algorithm="all-reduce", rounds=3) as opt:
        for _ in range(3):
            opt.zero_grad()
            x, y = images[opt.worker :: opt.workers], data.tensors[1][opt.worker :: opt.workers]
            F.cross_entropy(model(x), y).backward()
            opt.step()
    report["frozen_is_kept"] = bool((model[0].weight == frozen).all())
    report["trained"] = model[5].weight.flatten().tolist()
    (folder / f"features-{opt.worker}.json").write_text(json.dumps(report))


UNSATURATED = {
    "model": "softmax",
    "graph": {"topology": "complete:4"},
    "algorithm": {"name": "dpsgd"},
    "data.partition": "iid",
    "training": {"batch_size": 8, "learning_rate": 0.0004, "momentum": 0.0},
    "network": {
        "heartbeat_seconds": 0.2,
        "failure_timeout_seconds": 1.5,
        "message_timeout_seconds": 8.0,
        "startup_timeout_seconds": 60.0,
    },
}


def survive(folder: Path) -> None:
    """Trains at a rate at which every round counts, until the file `last` names the last round."""
    experiment = upwash.Experiment(UNSATURATED)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    # Slower the longer the run, so that the task stays unsaturated.
    rate = 0.0012 / max(3, int(os.environ.get("UPWASH_KILLS", "3")))
    opt = ut.Decentralized(torch.optim.SGD(model.parameters(), rate), model, UNSATURATED)
    model.load_state_dict(softmax(experiment.initial_model(opt.worker)).state_dict())
    run, last = 0, None
    with opt:
        while True:
            opt.zero_grad()
            if last is not None and opt.round >= last:
                break
            x, y = (torch.from_numpy(part) for part in experiment.batch(opt.worker, opt.round))
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step(loss=loss)
            run += 1
            if run % 20 == 0:
                (folder / f"round-{opt.worker}").write_text(f"{os.getpid()} {opt.round}")
                if (folder / "last").exists():
                    last = int((folder / "last").read_text())
            time.sleep(0.003)
    torch.save(model.state_dict(), folder / f"survivor-{opt.worker}.pt")
    (folder / f"survivor-{opt.worker}.json").write_text(json.dumps({"run": run, "summary": opt.summary.to_dict()}))


def fail(folder: Path) -> None:
    """Worker 1 fails the first time it is started; worker 2 always does."""
    model = torch.nn.Linear(2, 2)
    opt = ut.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, algorithm="dpsgd")
    marker = folder / f"started-{opt.worker}"
    first = not marker.exists()
    marker.touch()
    print("worker", opt.worker, "of", opt.workers)
    if opt.worker == 2 or opt.worker == 1 and first:
        sys.exit(3)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
