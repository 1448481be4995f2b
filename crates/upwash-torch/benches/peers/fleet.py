"""Eight workers on one GPU in plain PyTorch, as a PyTorch user would write them.

fleet.py agree DIR: repeats the 20 rounds that `gpu export DIR` wrote, from the same weights and batches in
f32, by D-PSGD and by AL-DSGD (sound) on L1. Fails if a loss differs by more than 1e-3 of its value, or the
change of all models in a round by more than a twentieth of it.
fleet.py speed [compile]: prints milliseconds per round, bf16 autocast, with batches from a data set on the GPU, crops and
flips, SGD with momentum, averaging and leaders: eager, as one CUDA graph on one stream, and as one CUDA graph with a
stream per worker; with `compile`, the last one also with every model compiled first."""

import sys
import time

import numpy
import torch
from torch import nn
import torch.nn.functional as F

EDGES = [(1, 5), (6, 7), (0, 4), (2, 3), (1, 7), (3, 6), (0, 1), (3, 7), (5, 6), (1, 2), (0, 7), (1, 3)]
WORKERS, ALPHA = 8, 2 / 7
NEIGHBORS = [[a + b - i for a, b in EDGES if i in (a, b)] for i in range(WORKERS)]


class Residual(nn.Module):
    def __init__(self, body, shortcut):
        super().__init__()
        self.body, self.shortcut = nn.Sequential(*body), nn.Sequential(*shortcut)

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def conv(inputs, outputs, size, stride, bias):
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias), nn.BatchNorm2d(outputs)]


def network(name):
    stem, stages, expansion, bias = {
        "resnet20": (16, [(16, 3), (32, 3), (64, 3)], 1, False),
        "thin-resnet50": (16, [(16, 3), (32, 4), (64, 6)], 4, True),
        "resnet50": (64, [(64, 3), (128, 4), (256, 6), (512, 3)], 4, False),
    }[name]
    layers = conv(3, stem, 3, 1, bias) + [nn.ReLU(True)]
    inputs = stem
    for stage, (planes, blocks) in enumerate(stages):
        for block in range(blocks):
            stride, outputs = 2 if stage and not block else 1, planes * expansion
            if expansion == 1:
                body = conv(inputs, planes, 3, stride, bias) + [nn.ReLU(True)] + conv(planes, planes, 3, 1, bias)
            else:
                body = (conv(inputs, planes, 1, 1, bias) + [nn.ReLU(True)] + conv(planes, planes, 3, stride, bias)
                        + [nn.ReLU(True)] + conv(planes, outputs, 1, 1, bias))
            same = inputs == outputs and stride == 1
            layers.append(Residual(body, [] if same else conv(inputs, outputs, 1, stride, bias)))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def plans(losses, rate, leaders):
    """The mixing matrix for the models after their steps."""
    rows = torch.zeros(WORKERS, WORKERS)
    for i, neighbors in enumerate(NEIGHBORS):
        rows[i, i] = 1 - ALPHA * len(neighbors)
        rows[i, neighbors] = ALPHA
        if leaders:
            near = sorted(neighbors + [i])
            best = min(near, key=lambda j: losses[j])
            degree = max(near, key=lambda j: len(NEIGHBORS[j]))
            rows[i] *= 0.8
            rows[i, best] += 0.1 + 0.1 * rate
            rows[i, degree] += 0.1 + 0.1 * rate
            rows[i, i] -= 0.2 * rate
    return rows


def read(path, kind="<f4"):
    return torch.from_numpy(numpy.fromfile(path, kind))


def agree(folder):
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    rounds, batch, rate = 20, 16, 0.01
    pixels = read(f"{folder}/pixels.bin").view(rounds, WORKERS, batch, 3, 32, 32).cuda()
    labels = read(f"{folder}/labels.bin", "u1").long().view(rounds, WORKERS, batch).cuda()
    passed = True
    for name in ("dpsgd", "al-dsgd"):
        # Every round starts from Upwash's models: over several rounds, even two correct programs drift apart,
        # because rounding turns activations near 0 on and off.
        start = read(f"{folder}/models.bin").view(1, WORKERS, -1)
        after = read(f"{folder}/{name}-models.bin").view(rounds, WORKERS, -1)
        before = torch.cat([start, after[:-1]])
        known = read(f"{folder}/{name}-losses.bin").view(rounds, WORKERS)
        models = [network("resnet20").cuda() for _ in range(WORKERS)]
        optimizers = [torch.optim.SGD(m.parameters(), lr=rate, weight_decay=5e-4) for m in models]
        worst_loss = worst_change = 0
        for k in range(rounds):
            losses = []
            for model, optimizer, row, x, y in zip(models, optimizers, before[k], pixels[k], labels[k]):
                nn.utils.vector_to_parameters(row.cuda(), model.parameters())
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            stepped = torch.stack([nn.utils.parameters_to_vector(m.parameters()).detach() for m in models])
            mixed = (plans(losses, rate, name == "al-dsgd").cuda() @ stepped).cpu()
            worst_loss = max(worst_loss, float(((torch.tensor(losses) - known[k]) / known[k]).abs().max()))
            worst_change = max(worst_change, float((mixed - after[k]).norm() / (after[k] - before[k]).norm()))
        good = worst_loss < 1e-3 and worst_change < 0.05
        passed &= good
        print(f"PyTorch and Upwash, {name}, f32, 20 rounds: largest difference of a loss {worst_loss:.1e}, "
              f"of a change {worst_change:.1e} {'ok' if good else 'WRONG'}")
    sys.exit(not passed)


def round_time(work, times):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / times


def speed(compiled):
    torch.backends.cudnn.benchmark = False
    data = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, device="cuda")
    classes = torch.randint(0, 10, (50_000,), device="cuda")
    for name, batch, times in (("resnet20", 16, 30), ("thin-resnet50", 16, 20), ("thin-resnet50", 128, 20), ("resnet50", 128, 10)):
        models = [network(name).cuda().to(memory_format=torch.channels_last) for _ in range(WORKERS)]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=True) for m in models]
        parameters = [list(m.parameters()) for m in models]
        losses = torch.zeros(WORKERS, device="cuda")
        matrix = torch.zeros(WORKERS, WORKERS, device="cuda")
        picks = torch.zeros(WORKERS, batch, dtype=torch.long, device="cuda")

        def batch_of(i):
            x = data[picks[i]].float() / 255
            # One crop and flip for all images: less work than Upwash does.
            x = F.pad(x, (4, 4, 4, 4))[:, :, 2:34, 3:35].flip(3)
            x = (x - 0.5) / 0.2
            return x.contiguous(memory_format=torch.channels_last), classes[picks[i]]

        def gradient(i, model):
            x, y = batch_of(i)
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses[i].copy_(loss.detach())
            optimizers[i].step()
            optimizers[i].zero_grad(set_to_none=False)

        def gradients():
            for i in range(WORKERS):
                gradient(i, models[i])

        streams = [torch.cuda.Stream() for _ in range(WORKERS)]

        def gradients_in_streams(models=models):
            main = torch.cuda.current_stream()
            for i, stream in enumerate(streams):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    gradient(i, models[i])
            for stream in streams:
                main.wait_stream(stream)

        @torch.no_grad()
        def mixing():
            for group in zip(*parameters):
                stacked = torch.stack([p.reshape(-1) for p in group])
                for p, row in zip(group, matrix @ stacked):
                    p.copy_(row.view_as(p))

        def one_round():
            picks.copy_(torch.randint(0, 50_000, (WORKERS, batch)))
            gradients()
            matrix.copy_(plans(losses.tolist(), 0.01, True))
            mixing()

        def as_graph(gradients):
            torch.cuda.synchronize()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(3):
                    gradients()
                    mixing()
            torch.cuda.synchronize()
            first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(first, stream=side):
                gradients()
            with torch.cuda.graph(second, stream=side):
                mixing()

            def replayed():
                picks.copy_(torch.randint(0, 50_000, (WORKERS, batch)))
                first.replay()
                matrix.copy_(plans(losses.tolist(), 0.01, True))
                second.replay()

            return round_time(replayed, times)

        eager = round_time(one_round, times)
        found = f"eager {eager:.2f} ms per round, one CUDA graph {as_graph(gradients):.2f}"
        found += f", a stream per worker {as_graph(gradients_in_streams):.2f}"
        if compiled:
            fast = [torch.compile(model) for model in models]
            found += f", compiled {as_graph(lambda: gradients_in_streams(fast)):.2f}"
        print(f"PyTorch {name}, batch {batch}: {found}", flush=True)
        del models, optimizers, parameters
        torch.cuda.empty_cache()


if sys.argv[1] == "agree":
    agree(sys.argv[2])
else:
    speed("compile" in sys.argv[2:])
