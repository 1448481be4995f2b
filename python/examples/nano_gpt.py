"""A small GPT on the source of a module, in plain PyTorch: `python nano_gpt.py`"""

import argparse
import inspect

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1337)
STEPS, BATCH, CONTEXT, WIDTH, HEADS, LAYERS = 60, 8, 32, 64, 4, 2

text = inspect.getsource(argparse)
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])


class Block(nn.Module):
    """Attention to what came before, and a perceptron for each position."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        heads = self.query_key_value(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).transpose(1, 3)
        query, key, value = heads.unbind(2)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norm2(x))


class GPT(nn.Module):
    """Predicts the next letter at every position."""

    def __init__(self):
        super().__init__()
        self.letters, self.positions = nn.Embedding(len(letters), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(letters), bias=False)
        self.head.weight = self.letters.weight  # tied

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.letters(x) + self.positions.weight[: x.shape[1]])))


model = GPT()
opt = torch.optim.AdamW(model.parameters(), 3e-3)
draw = torch.Generator().manual_seed(1337)
for step in range(STEPS):
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=draw)
    x, y = (torch.stack([data[i + shift : i + shift + CONTEXT] for i in starts]) for shift in (0, 1))
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % 20 == 0:
        print(f"step {step + 1}: loss {loss.item():.3f}")
