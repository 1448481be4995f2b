"""A ResNet-18 as in torchvision, on several workers: `python -m upwash.launch -n 4 resnet.py`

The pictures are made here: stripes of four directions, in noise. Put your own data set in their place.
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import upwash
import upwash.torch as ut

torch.manual_seed(0)
EPOCHS, WIDTH = (int(argument) for argument in sys.argv[1:3] or ("2", "8"))


def pictures(count, seed):
    """Pictures of 16 x 16 pixels in three colors, and the direction of their stripes."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=draw)
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    stripes = torch.stack([x, y, x + y, x - y]).remainder(4).float()[labels]
    return stripes[:, None] + 1.5 * torch.randn(count, 3, 16, 16, generator=draw), labels


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


def resnet18(width, classes):
    """Four stages of two blocks."""
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Block(inputs, outputs, 1 + (stage > 0)), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


model = resnet18(WIDTH, classes=4)
sgd = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
images, labels = pictures(1600, seed=1)
with ut.Decentralized(sgd, model, algorithm="al-dsgd", statistics="averaged", batch_size=16) as opt:
    sampler = upwash.Sampler(labels, opt.workers, opt.worker, batch_size=16)
    loader = DataLoader(TensorDataset(images, labels), batch_sampler=sampler)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS * len(loader))
    for _ in range(EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step(loss=loss)
            schedule.step()
model.eval()
images, labels = pictures(400, seed=2)
with torch.no_grad():
    accuracy = (model(images).argmax(1) == labels).float().mean()
print(f"worker {opt.worker}: {100 * accuracy:.1f} % of the test pictures are right")
