"""Eight workers as a PyTorch user would write them, on the CPU: gradients in a loop, then a loop over neighbors and
parameters for the averaging. Prints images per second in three ways: all models in one process with all cores, the
same with images stored channels last, and one process per core, each with its share of the models on one thread and
channels last (without the averaging, which such processes would exchange). Arguments are names of models; the default is
those of `cargo bench -p upwash --bench rounds`. With `averaging`, prints the time of the averaging alone for the sizes of
`cargo bench -p upwash --bench mixing`."""

import multiprocessing
import os
import sys
import time

import torch
from torch import nn
import torch.nn.functional as F

WORKERS, BATCH = 8, 32
EDGES = [(1, 5), (6, 7), (0, 4), (2, 3), (1, 7), (3, 6), (0, 1), (3, 7), (5, 6), (1, 2), (0, 7), (1, 3)]
LINKS = {i: [a + b - i for a, b in EDGES if i in (a, b)] for i in range(WORKERS)}
ALPHA = 2 / 7
SHAPES = {"resnet20": (3, 32, 32), "thin-resnet50": (3, 32, 32), "cnn": (1, 8, 8), "mlp:64": (1, 8, 8),
          "mlp:256,128": (1, 28, 28)}


def conv(inputs, outputs, size, stride, bias):
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias), nn.BatchNorm2d(outputs)]


class Block(nn.Module):
    def __init__(self, body, shortcut):
        super().__init__()
        self.body, self.shortcut = nn.Sequential(*body), nn.Sequential(*shortcut)

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def residual(stages, expansion, bias):
    layers, inputs = conv(3, 16, 3, 1, bias) + [nn.ReLU()], 16
    for stage, (planes, blocks) in enumerate(stages):
        for index in range(blocks):
            stride, outputs = 2 if stage and not index else 1, planes * expansion
            if expansion == 1:
                body = conv(inputs, planes, 3, stride, bias) + [nn.ReLU()] + conv(planes, planes, 3, 1, bias)
            else:
                body = (conv(inputs, planes, 1, 1, bias) + [nn.ReLU()] + conv(planes, planes, 3, stride, bias)
                        + [nn.ReLU()] + conv(planes, outputs, 1, 1, bias))
            same = inputs == outputs and stride == 1
            layers.append(Block(body, [] if same else conv(inputs, outputs, 1, stride, bias)))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def network(name):
    if name == "resnet20":
        return residual([(16, 3), (32, 3), (64, 3)], 1, False)
    if name == "thin-resnet50":
        return residual([(16, 3), (32, 4), (64, 6)], 4, True)
    channels, height, width = SHAPES[name]
    if name == "cnn":
        first, second = conv(channels, 16, 3, 1, False), conv(16, 32, 3, 1, False)
        return nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                             nn.Linear(32 * (height // 2) * (width // 2), 10))
    layers, inputs = [nn.Flatten()], channels * height * width
    for outputs in map(int, name.split(":")[1].split(",")):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Linear(inputs, 10))


def average(models):
    """D-PSGD's W x, in the straightforward way."""
    with torch.no_grad():
        old = [[p.detach().clone() for p in model.parameters()] for model in models]
        for i, model in enumerate(models):
            for k, p in enumerate(model.parameters()):
                new = (1 - ALPHA * len(LINKS[i])) * old[i][k]
                for j in LINKS[i]:
                    new += ALPHA * old[j][k]
                p.copy_(new)


def best(work, times=3):
    work()
    found = float("inf")
    for _ in range(times):
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < 0.5 or not count:
            work()
            count += 1
        found = min(found, (time.perf_counter() - began) / count)
    return found


def rounds(name, workers, channels_last, averages):
    """Seconds of a round of some workers."""
    order = torch.channels_last if channels_last else torch.contiguous_format
    models = [network(name).to(memory_format=order) for _ in range(workers)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
    images = [torch.randn(BATCH, *SHAPES[name]).to(memory_format=order) for _ in range(workers)]
    labels = torch.randint(0, 10, (workers, BATCH))

    def one_round():
        for i, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            F.cross_entropy(model(images[i]), labels[i]).backward()
            optimizer.step()
        if averages:
            average(models)

    return best(one_round)


def process(name, workers, queue):
    torch.set_num_threads(1)
    queue.put(rounds(name, workers, True, False))


def in_processes(name, count):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=process, args=(name, WORKERS // count, queue)) for _ in range(count)]
    for started in processes:
        started.start()
    seconds = max(queue.get() for _ in processes)
    for started in processes:
        started.join()
    return seconds


def main():
    if sys.argv[1:] == ["averaging"]:
        for size in (545_930, 5_000_000, 25_000_000):
            # A model has about a hundred tensors.
            replicas = [nn.ParameterList([nn.Parameter(torch.full((size // 100,), 0.5)) for _ in range(100)])
                        for _ in range(WORKERS)]
            print(f"PyTorch averaging {size:>10} parameters: {1e3 * best(lambda: average(replicas)):.2f} ms")
        return
    count = min(os.cpu_count(), WORKERS)
    for name in sys.argv[1:] or SHAPES:
        images = WORKERS * BATCH
        found = [rounds(name, WORKERS, False, True), rounds(name, WORKERS, True, True), in_processes(name, count)]
        loop, last, processes = (images / seconds for seconds in found)
        print(f"PyTorch {torch.__version__}, {name}, batch {BATCH}: a loop {loop:.0f} images/s, channels last {last:.0f}, "
              f"{count} processes {processes:.0f}", flush=True)


if __name__ == "__main__":
    main()
