"""The slow service mended: the count of requests is a tensor, so no guard holds its value."""

import torch
from torch import nn

REAL_CALLS = 100_000


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4096))
        self.register_buffer("requests", torch.zeros(()))

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
