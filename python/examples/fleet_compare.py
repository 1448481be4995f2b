"""Compares four algorithms on a model of your own: eight replicas of a small network learn to classify spirals.

    python examples/fleet_compare.py [--rounds 200] [--out runs/spirals] [--device cuda]

`upwash report runs/spirals -o page.html` shows the runs side by side.
"""

import argparse

import torch
from torch import nn

from upwash.torch import Fleet

WORKERS = 8


def make_model():
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))


def spirals(examples, generator):
    """Points on three spirals, and which spiral each is on."""
    labels = torch.randint(0, 3, (examples,), generator=generator)
    radius = torch.rand(examples, generator=generator)
    angle = 4 * radius + 2.1 * labels + 0.1 * torch.randn(examples, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def train(algorithm, options, arguments):
    generator = torch.Generator().manual_seed(1)
    batches = [spirals(32 * WORKERS, generator) for _ in range(arguments.rounds)]
    test_points, test_labels = spirals(1000, generator)
    fleet = Fleet(
        make_model,
        algorithm=algorithm,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 0.005),
        device=arguments.device,
        rounds=arguments.rounds,
        rounds_per_epoch=10,
        out=arguments.out and f"{arguments.out}/{algorithm}",
        **options,
    )
    with fleet:
        for points, labels in batches:
            losses = fleet.step(points.view(WORKERS, 32, 2), labels.view(WORKERS, 32), nn.functional.cross_entropy)
    model = fleet.average().cpu()
    accuracy = float((model(test_points).argmax(1) == test_labels).float().mean())
    print(
        f"{fleet.algorithm:<30} loss {losses.mean():.3f}, averaged model {100 * accuracy:.1f} % right, "
        f"distance {fleet.consensus_distance():.2e}, {fleet.summary.bytes_sent / 1e6:.1f} MB sent"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", help="a folder for the runs")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    for algorithm, options in {
        "dpsgd": {},
        "al-dsgd": {},
        "choco": {"compressor": "top-k", "part": 0.1},
        "local-sgd": {"period": 8},
    }.items():
        train(algorithm, options, arguments)


if __name__ == "__main__":
    main()
