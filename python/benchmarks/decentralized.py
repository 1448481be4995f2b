"""The time of a step of `upwash.torch.Decentralized`, beside DistributedDataParallel of PyTorch over gloo.

    python benchmarks/decentralized.py

Four processes on this machine train the same modules on random batches of 8, one thread each: alone, as workers of D-PSGD in a
ring, and with DistributedDataParallel, in turn. The fastest of several short passes counts, because other processes can only
add to the time.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import upwash.torch as ut

WORKERS, PASSES, STEPS = 4, 7, 40
MODELS = {
    "small": lambda: nn.Linear(64, 10),
    "large": lambda: nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 704), nn.ReLU(), nn.Linear(704, 10)
    ),
}


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)


def step_of(model, optimizer):
    """A function that takes a step."""
    x = torch.randn(8, next(model.parameters()).shape[1])
    y = torch.randint(0, 10, (8,))

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def seconds_of(step):
    """Seconds of a step, from one moment at which all processes are ready to the next."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    dist.barrier()
    return (time.perf_counter() - start) / STEPS


def work(folder):
    """What each process does."""
    torch.set_num_threads(1)
    for name, make in MODELS.items():
        model = make()
        with ut.Decentralized(sgd(model), model, graph=f"ring:{WORKERS}", algorithm="dpsgd") as opt:
            if not dist.is_initialized():
                file = Path(folder).as_uri() + "/gloo"
                dist.init_process_group("gloo", init_method=file, rank=opt.worker, world_size=WORKERS)
            alone, parallel = make(), nn.parallel.DistributedDataParallel(make())
            steps = [step_of(alone, sgd(alone)), step_of(model, opt), step_of(parallel, sgd(parallel))]
            times = [
                min(passes)
                for passes in zip(*([seconds_of(step) for step in steps] for _ in range(PASSES)), strict=True)
            ]
            if opt.worker == 0:
                size = sum(parameter.numel() for parameter in model.parameters())
                shown = "".join(f"{1e3 * seconds:>15.2f}" for seconds in times)
                print(f"  {name:<8}{size:>10,}{shown}{times[1] / times[2]:>9.2f}", flush=True)
    dist.destroy_process_group()


def main():
    if len(sys.argv) > 1:
        return work(sys.argv[1])
    print("a step, ms\n\n  model   parameters        alone  Decentralized            DDP    ratio", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "upwash.launch", "-n", str(WORKERS), __file__, folder]
        return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
