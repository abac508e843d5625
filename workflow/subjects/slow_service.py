"""A service that smooths its scores by a running scale, and became slower under `torch.compile`."""

import torch
from torch import nn

REAL_CALLS = 100_000


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4096))
        self.requests = 0

    def forward(self, x):
        self.requests += 1
        y = torch.tanh(x * self.weight) * torch.sigmoid(x) + torch.sin(x) * torch.cos(x)
        return y / (1 + 1 / self.requests)


def make():
    return Scorer().requires_grad_(False), {}


def calls():
    generator = torch.Generator().manual_seed(0)
    for _ in range(24):
        yield (torch.randn(64, 4096, generator=generator),), {}
