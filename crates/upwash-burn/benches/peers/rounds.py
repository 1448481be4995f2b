"""Eight ResNet-20 replicas as a PyTorch user would write them: gradients in a loop, then a loop over neighbors
and parameters for the averaging, on the CPU with all cores. Prints images per second, and the time of the
averaging alone for the sizes of `cargo bench -p upwash`."""

import time

import torch
from torch import nn
import torch.nn.functional as F

WORKERS, BATCH = 8, 32
EDGES = [(1, 5), (6, 7), (0, 4), (2, 3), (1, 7), (3, 6), (0, 1), (3, 7), (5, 6), (1, 2), (0, 7), (1, 3)]
LINKS = {i: [a + b - i for a, b in EDGES if i in (a, b)] for i in range(WORKERS)}
ALPHA = 2 / 7


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.c1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(outputs)
        self.c2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(y)) + self.short(x))


def resnet20():
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for outputs in (16, 32, 64):
        for index in range(3):
            layers.append(Block(inputs, outputs, 2 if index == 0 and outputs > 16 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


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
        began = time.perf_counter()
        work()
        found = min(found, time.perf_counter() - began)
    return found


def main():
    models = [resnet20() for _ in range(WORKERS)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
    images = torch.randn(WORKERS, BATCH, 3, 32, 32)
    labels = torch.randint(0, 10, (WORKERS, BATCH))

    def one_round():
        for i, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            F.cross_entropy(model(images[i]), labels[i]).backward()
            optimizer.step()
        average(models)

    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads: "
          f"{WORKERS * BATCH / best(one_round):.1f} images/s")
    for size in (545_930, 5_000_000, 25_000_000):
        # A model has about a hundred tensors.
        replicas = [nn.ParameterList([nn.Parameter(torch.full((size // 100,), 0.5)) for _ in range(100)])
                    for _ in range(WORKERS)]
        print(f"PyTorch averaging {size:>10} parameters: {1e3 * best(lambda: average(replicas)):.2f} ms")


main()
