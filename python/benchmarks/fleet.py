"""Fleets on a GPU: whether a step is captured and computes what it should, and how long it takes.

    python benchmarks/fleet.py check                       # needs a CUDA device, and so does speed
    python benchmarks/fleet.py speed [--seconds 60] [--only resnet20]

`check` compares captured steps with eager ones, on this device and on the CPU, and fails if a model is not captured.
`speed` prints milliseconds a round with 8 workers and bf16 for a fleet, plain and compiled, beside the multi-stream
CUDA graph of crates/upwash-torch/benches/peers/fleet.py, written by hand, and beside an eager loop. All in one
file, for a machine with a GPU on which nothing else is installed.
"""

import argparse
import contextlib
import gc
import importlib.util
import itertools
import math
import sys
import time
import traceback
import types
import warnings
from pathlib import Path


def stub_tqdm():
    """The package shows progress with tqdm, which this program does not need."""
    try:
        import tqdm.auto  # noqa: F401
    except ImportError:
        tqdm, auto = types.ModuleType("tqdm"), types.ModuleType("tqdm.auto")

        class Bar:
            def __init__(self, *_, **__):
                self.n = 0

            write = staticmethod(print)

        tqdm.TqdmWarning = type("TqdmWarning", (Warning,), {})
        auto.tqdm = tqdm.auto = Bar
        sys.modules |= {"tqdm": tqdm, "tqdm.auto": auto}


stub_tqdm()
HERE = Path(__file__).resolve().parent
with contextlib.suppress(IndexError):
    # Beside a package that was built in place.
    if list((HERE.parent / "src" / "upwash").glob("_upwash*.so")):
        sys.path.insert(0, str(HERE.parent / "src"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from upwash.torch import Fleet  # noqa: E402

F = nn.functional
WORKERS = 8


def peers():
    """The models of the benchmark that was written by hand."""
    path = HERE.parents[1] / "crates" / "upwash-torch" / "benches" / "peers" / "fleet.py"
    spec = importlib.util.spec_from_file_location("peer_fleet", path)
    module = importlib.util.module_from_spec(spec)
    # Dynamo imports the module of a class by its name.
    sys.modules[spec.name] = module
    # The file runs a command when it is loaded: give it one that does nothing.
    arguments, sys.argv = sys.argv, [str(path), "none"]
    try:
        source = path.read_text().replace("if sys.argv[1]", "if __name__ == '__main__' and sys.argv[1]", 1)
        source = source.replace("\nelse:\n    speed", "\nelif __name__ == '__main__':\n    speed", 1)
        exec(compile(source, str(path), "exec"), module.__dict__)
    finally:
        sys.argv = arguments
    return module


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network: ResNet-20 for CIFAR, or ResNet-18 as in torchvision."""

    def __init__(self, widths, blocks, classes=10, imagenet_stem=False):
        super().__init__()
        stem = (
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
            if imagenet_stem
            else nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        )
        layers = [stem, nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)]
        if imagenet_stem:
            layers.append(nn.MaxPool2d(3, 2, 1))
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                layers.append(Residual(inputs, width, 2 if stage and not block else 1))
                inputs = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class Block(nn.Module):
    """A layer of a transformer, as in nanoGPT."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attention, self.projection = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.heads, self.dropout = heads, dropout

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + F.dropout(self.projection(y.transpose(1, 2).reshape(batch, length, width)), dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), dropout)


class Gpt(nn.Module):
    """A language model as in nanoGPT; 10.8 million parameters by default."""

    def __init__(self, tokens=65, context=256, width=384, layers=6, heads=6, dropout=0.0):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, tokens, bias=False)
        self.tokens.weight = self.head.weight
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def image_loss(output, labels):
    return F.cross_entropy(output.float(), labels)


def text_loss(output, labels):
    return F.cross_entropy(output.float().flatten(0, 1), labels.flatten())


def images(batch, side=32, device="cuda"):
    x = torch.randn(WORKERS, batch, 3, side, side, device=device)
    return x, torch.randint(0, 10, (WORKERS, batch), device=device)


def texts(batch, context, tokens=65, device="cuda"):
    text = torch.randint(0, tokens, (WORKERS, batch, context + 1), device=device)
    return text[..., :-1].contiguous(), text[..., 1:].contiguous()


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.01, momentum=0.9, weight_decay=5e-4)


def adamw(parameters):
    return torch.optim.AdamW(parameters, 3e-4)


class Report:
    """What was checked, and what failed."""

    def __init__(self):
        self.failed = 0

    def check(self, name, work):
        began = time.perf_counter()
        try:
            found, passed = work()
        except Exception:
            found, passed = traceback.format_exc(limit=-6).strip().replace("\n", "\n    "), False
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        self.failed += not passed
        print(f"{'ok   ' if passed else 'WRONG'} {name} ({time.perf_counter() - began:.1f} s): {found}", flush=True)


def steps(device, capture, rounds, make, optimizer, batch, loss, **options):
    """Losses of some rounds, the models after each, and the fleet."""
    fleet = Fleet(make, device=device, capture=capture, optimizer=optimizer, seed=3, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(fleet.optimizer, 4, 0.5)
    losses = []
    for round in range(rounds):
        torch.manual_seed(100 + round)
        x, y = batch("cpu")
        losses.append(fleet.step(x.to(device), y.to(device), loss))
        scheduler.step()
    torch.cuda.synchronize()
    return torch.stack(losses), fleet


def same_as_eager(rounds=14, **case):
    """Captured and eager steps on the GPU, and eager steps on the CPU."""
    captured, fleet = steps("cuda", True, rounds, **case)
    eager, other = steps("cuda", False, rounds, **case)
    cpu, _ = steps("cpu", None, rounds, **case)
    away = float(((captured - eager).abs() / eager.abs().clamp(min=1e-3)).max())
    far = float(((eager - cpu).abs() / cpu.abs().clamp(min=1e-3)).max())
    models = float((fleet._store.model - other._store.model).norm() / other._store.model.norm())
    found = f"captured {fleet.captured}, losses differ by {away:.1e} from eager ones, {far:.1e} from the CPU's"
    found += f", models by {models:.1e}"
    return found, away < 2e-3 and far < 2e-2 and models < 2e-3 and all(fleet.captured.values())


def is_captured(make, batch, loss, optimizer, rounds=10, **options):
    """Whether all parts of a step are captured, and losses fall on a batch that is repeated."""
    fleet = Fleet(make, device="cuda", optimizer=optimizer, **options)
    x, y = batch("cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        losses = [float(fleet.step(x, y, loss).mean()) for _ in range(rounds)]
    said = "; ".join(str(warning.message) for warning in caught if "eagerly" in str(warning.message))
    found = f"captured {fleet.captured}, loss {losses[0]:.3f} to {losses[-1]:.3f}{said and '; ' + said}"
    reads = fleet._gradients._graphs._reads_early
    return f"{found}, losses read early: {reads}", all(fleet.captured.values()) and losses[-1] < losses[0]


def falls_back():
    """A loss that looks at a value on the host cannot be captured: the round must be right all the same."""

    def loss(model, batch):
        x, y = batch
        value = F.cross_entropy(F.dropout(model(x), 0.1), y)
        return value * (2.0 if value.item() > 100 else 1.0)

    fleet = Fleet(lambda: nn.Linear(16, 4), device="cuda", graph="ring:8", algorithm="dpsgd")
    batches = [(torch.randn(8, 16, device="cuda"), torch.randint(0, 4, (8,), device="cuda")) for _ in range(WORKERS)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        losses = [float(fleet.step(batches, loss).mean()) for _ in range(12)]
    said = [str(warning.message) for warning in caught if "eagerly" in str(warning.message)]
    torch.rand(3, device="cuda")  # the random generator works
    return f"{said}, loss {losses[0]:.3f} to {losses[-1]:.3f}", len(said) == 1 and losses[-1] < losses[0]


def other_shapes():
    """A short last batch, and a rate that changes."""
    fleet = Fleet(lambda: nn.Linear(16, 4), device="cuda", graph="ring:8", algorithm="al-dsgd", optimizer=sgd)
    for round in range(30):
        size = 5 if round % 6 == 5 else 8
        fleet.step(torch.randn(8, size, 16), torch.randint(0, 4, (8, size)), F.cross_entropy)
        fleet.optimizer.param_groups[0]["lr"] = 0.01 / (1 + round)
    rates = [float(rate) for rate in fleet._update._step._rates]
    known = 0.01 / 29
    graphs = sum(graph.graph is not None for graph in fleet._gradients._graphs._graphs.values())
    return f"{graphs} graphs, rate {rates}", graphs == 2 and abs(rates[0] - known) < 1e-9


def check():
    report = Report()
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}", flush=True)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    small = {"make": lambda: ResNet([8, 16], 1), "loss": image_loss, "batch": lambda device: images(4, 16, device)}
    for algorithm, options in {
        "dpsgd": {},
        "al-dsgd": {},
        "al-dsgd over matcha": {"algorithm": "al-dsgd", "base": "matcha"},
        "dpsgd with overlap": {"algorithm": "dpsgd", "overlap": True, "config": {"graph.weights": "metropolis"}},
        "d2": {"config": {"graph.weights": "metropolis"}},
        "gossip-pga": {},
        "all-reduce": {},
        "slowmo": {"slow_period": 4},
        "choco": {},
        "choco random-k": {"algorithm": "choco", "compressor": "random-k"},
        "easgd": {"graph": "star:9"},
        "lsgd": {"period": 2},
        "sgp": {},
    }.items():
        case = {"algorithm": algorithm, "optimizer": sgd, **small, **options}
        report.check(f"{algorithm}, SGD", lambda case=case: same_as_eager(**case))
    averaged = {"algorithm": "dpsgd", "optimizer": adamw, "statistics": "averaged", **small}
    report.check("dpsgd, AdamW, averaged statistics", lambda: same_as_eager(**averaged))
    report.check("short batches and rates", other_shapes)
    report.check("a loss that cannot be captured", falls_back)
    bf16 = torch.bfloat16
    models = {
        "ResNet-20": (lambda: ResNet([16, 32, 64], 3), lambda device: images(16, 32, device), image_loss, sgd),
        "ResNet-18": (
            lambda: ResNet([64, 128, 256, 512], 2, 1000, imagenet_stem=True),
            lambda device: images(8, 96, device),
            image_loss,
            sgd,
        ),
        "GPT": (lambda: Gpt(dropout=0.1, layers=2), lambda device: texts(4, 256, device=device), text_loss, adamw),
    }
    for name, (make, batch, loss, optimizer) in models.items():
        report.check(name, lambda m=make, b=batch, f=loss, o=optimizer: is_captured(m, b, f, o, autocast=bf16))
    gpt = models["GPT"]
    report.check("GPT, compiled", lambda: is_captured(*gpt, autocast=bf16, compile=True))
    resnet = models["ResNet-20"]
    report.check(
        "ResNet-20, compiled, channels_last",
        lambda: is_captured(
            lambda: resnet[0]().to(memory_format=torch.channels_last), *resnet[1:], autocast=bf16, compile=True
        ),
    )
    sys.exit(report.failed > 0)


def milliseconds(work, seconds, warm_up=8):
    """The time of a round: the mean of as many as fit, after some to warm up."""
    for _ in range(warm_up):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    one = (time.perf_counter() - began) / 3
    count = max(5, min(200, math.ceil(seconds / max(one, 1e-6))))
    began = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / count


def measured(name, work):
    """Prints a measurement, or the error in place of it."""
    began = time.perf_counter()
    try:
        print(f"  {name:<34}{work():>9.2f} ms a round   ({time.perf_counter() - began:.0f} s)", flush=True)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        print(f"  {name:<34}{type(error).__name__}: {lines[0]}", flush=True)
        traceback.print_exc(limit=-4)
    finally:
        gc.collect()
        torch.cuda.empty_cache()
        with contextlib.suppress(Exception):
            torch._dynamo.reset()


class Case:
    """A model, its batches and its optimizer."""

    def __init__(self, make, loss, optimizer, draw):
        self.make, self.loss, self.optimizer, self.draw = make, loss, optimizer, draw

    def fleet(self, seconds, compile):
        fleet = Fleet(
            self.make,
            device="cuda",
            optimizer=self.optimizer,
            autocast=torch.bfloat16,
            compile=compile,
            config={"graph.topology": "paper:L1", "algorithm.name": "al-dsgd"},
        )
        time = milliseconds(lambda: fleet.step(*self.draw(), self.loss), seconds)
        missing = [part for part, is_captured in fleet.captured.items() if not is_captured]
        if missing:
            print(f"  (not captured: {', '.join(missing)})")
        fleet.close()
        return time

    def by_hand(self, peer, seconds, mode):
        """A round as a PyTorch user would write it: one graph with a stream for every worker, or an eager loop."""
        models = [self.make().cuda() for _ in range(WORKERS)]
        called = [torch.compile(model) for model in models] if mode == "compiled" else models
        optimizers = [self.optimizer(model.parameters()) for model in models]
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            if "capturable" in group:
                # The fastest form of AdamW, as the fleet uses it.
                group["capturable"], group["fused"] = mode != "eager", True
        parameters = [[p for p in model.parameters()] for model in models]
        losses, matrix = torch.zeros(WORKERS, device="cuda"), torch.zeros(WORKERS, WORKERS, device="cuda")
        room = [tensor.clone() for tensor in self.draw()]

        def gradient(i):
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                loss = self.loss(called[i](room[0][i]), room[1][i])
            loss.backward()
            losses[i].copy_(loss.detach())
            optimizers[i].step()
            optimizers[i].zero_grad(set_to_none=False)

        streams = [torch.cuda.Stream() for _ in range(WORKERS)]

        def gradients():
            if mode == "eager":
                for i in range(WORKERS):
                    gradient(i)
                return
            main = torch.cuda.current_stream()
            for i, stream in enumerate(streams):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    gradient(i)
            for stream in streams:
                main.wait_stream(stream)

        @torch.no_grad()
        def mixing():
            for group in zip(*parameters, strict=True):
                stacked = torch.stack([p.reshape(-1) for p in group])
                for p, row in zip(group, matrix @ stacked, strict=True):
                    p.copy_(row.view_as(p))

        def load():
            for tensor, values in zip(room, self.draw(), strict=True):
                tensor.copy_(values)

        def plan():
            matrix.copy_(peer.plans(losses.tolist(), 0.01, True))

        first, second = gradients, mixing
        if mode != "eager":
            torch.cuda.synchronize()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                matrix.copy_(torch.eye(WORKERS))
                for _ in range(3):
                    gradients()
                    mixing()
            torch.cuda.synchronize()
            graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[0], stream=side, capture_error_mode="thread_local"):
                gradients()
            with torch.cuda.graph(graphs[1], stream=side, capture_error_mode="thread_local"):
                mixing()
            first, second = graphs[0].replay, graphs[1].replay

        def one_round():
            load()
            first()
            plan()
            second()

        return milliseconds(one_round, seconds)


def cases(peer):
    """The cases of the table in docs/pytorch.md."""

    def image_case(name, batch):
        data = [images(batch) for _ in range(4)]
        turns = itertools.cycle(data)

        def make():
            return peer.network(name).to(memory_format=torch.channels_last)

        def draw():
            x, y = next(turns)
            return x, y

        data[:] = [
            (torch.stack([part.contiguous(memory_format=torch.channels_last) for part in x]), y) for x, y in data
        ]
        return Case(make, F.cross_entropy, sgd, draw)

    def text_case():
        turns = itertools.cycle([texts(16, 256) for _ in range(4)])
        return Case(Gpt, text_loss, adamw, lambda: next(turns))

    return {
        "resnet20, batch 16": lambda: image_case("resnet20", 16),
        "thin-resnet50, batch 16": lambda: image_case("thin-resnet50", 16),
        "thin-resnet50, batch 128": lambda: image_case("thin-resnet50", 128),
        "resnet50, batch 128": lambda: image_case("resnet50", 128),
        "GPT of 10.8 M, AdamW, batch 16": text_case,
    }


def measure(case, peer, seconds):
    """All forms of a case, side by side."""
    measured("fleet", lambda: case.fleet(seconds, False))
    measured("by hand, a graph of 8 streams", lambda: case.by_hand(peer, seconds, "graph"))
    measured("fleet, compiled", lambda: case.fleet(seconds, True))
    measured("by hand, compiled", lambda: case.by_hand(peer, seconds, "compiled"))
    measured("eager loop", lambda: case.by_hand(peer, min(seconds, 2), "eager"))


def speed(seconds, only):
    peer = peers()
    torch.backends.cudnn.benchmark = False
    print(
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}; {WORKERS} workers, bf16"
    )
    for name, make in cases(peer).items():
        if only and only not in name:
            continue
        print(name, flush=True)
        measure(make(), peer, seconds / 8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["check", "speed"])
    parser.add_argument(
        "--seconds", type=float, default=40, help="about how long to measure each case; setup comes on top"
    )
    parser.add_argument("--only", help="only cases with this in their name")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: no CUDA device: run this where torch.cuda.is_available()")
    if arguments.what == "check":
        check()
    else:
        speed(arguments.seconds, arguments.only)


if __name__ == "__main__":
    main()
