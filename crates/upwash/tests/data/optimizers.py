"""Makes optimizers.json: steps of optimizers in double precision, by PyTorch 2.11 and lion-pytorch 0.2.5."""
import json, sys
import torch
from lion_pytorch import Lion

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
# torch.optim.Muon iterates in bfloat16. Here it is the published iteration in the precision of the gradient.
torch.Tensor.bfloat16 = lambda tensor: tensor.clone()
SHAPES = {"a.weight": [6, 4], "a.bias": [6], "b.weight": [4, 2, 3, 3], "norm.weight": [4], "c.weight": [3, 5]}
STEPS = 20
start = {name: torch.randn(shape) for name, shape in SHAPES.items()}
gradients = [{name: torch.randn(shape) * 10 ** torch.randn(1) for name, shape in SHAPES.items()} for _ in range(STEPS)]


class Both:
    """Muon for matrices, AdamW for the rest."""

    def __init__(self, decayed, rest, rate):
        flat = [p for p in decayed]
        self.muon = torch.optim.Muon(flat, lr=rate, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw")
        self.others = torch.optim.AdamW(rest, lr=rate, weight_decay=0.0)

    def step(self):
        self.muon.step()
        self.others.step()


def final(make, rate, clip=None):
    # Muon of PyTorch takes matrices: kernels are seen as outputs x the rest, as in the published code.
    parameters = {name: x.clone().reshape(x.shape[0], -1) if x.dim() > 1 else x.clone() for name, x in start.items()}
    decayed = [x for x in parameters.values() if x.dim() > 1]
    rest = [x for x in parameters.values() if x.dim() == 1]
    optimizer = make(decayed, rest, rate)
    for gradient in gradients:
        for name, x in parameters.items():
            x.grad = gradient[name].clone().reshape(x.shape)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(parameters.values()), clip)
        optimizer.step()
    return torch.cat([x.flatten() for x in parameters.values()]).tolist()


def groups(decayed, rest, decay):
    return [{"params": decayed, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


everything = lambda decayed, rest: [{"params": decayed + rest}]
cases = {
    "sgd": final(lambda d, r, rate: torch.optim.SGD(everything(d, r), lr=rate, momentum=0.9, nesterov=True, weight_decay=0.01), 0.01),
    "sgd clipped": final(lambda d, r, rate: torch.optim.SGD(everything(d, r), lr=rate, momentum=0.9), 0.01, clip=2.0),
    "adamw": final(lambda d, r, rate: torch.optim.AdamW(groups(d, r, 0.01), lr=rate), 0.01),
    "adamw all": final(lambda d, r, rate: torch.optim.AdamW(everything(d, r), lr=rate, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.2), 0.01),
    "lion": final(lambda d, r, rate: Lion(groups(d, r, 0.3), lr=rate, betas=(0.9, 0.99)), 0.01),
    "muon": final(Both, 0.02),
}
flat = lambda tensors: torch.cat([x.flatten() for x in tensors.values()]).tolist()
numbers = lambda values: [float(f"{x:.10g}") for x in values]
json.dump({
    "shapes": [[name, shape] for name, shape in SHAPES.items()],
    "start": numbers(flat(start)),
    "gradients": [numbers(flat(gradient)) for gradient in gradients],
    "final": {name: numbers(values) for name, values in cases.items()},
}, open(sys.argv[1], "w"), separators=(",", ":"))
