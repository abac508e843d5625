"""rotary-embedding-torch 0.9.1: its RotaryEmbedding with the settings it comes with, in an attention layer
that is compiled whole, `torch.compile(layer)`.

It keeps what it has computed for the longest sequence so far. Do sequences that get longer stay with the
graphs of the first calls?
"""

import torch
from rotary_embedding_torch import RotaryEmbedding
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Attention(nn.Module):
    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.rotary = RotaryEmbedding(dim=width // heads)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.rotary.rotate_queries_or_keys(q), self.rotary.rotate_queries_or_keys(k)
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def make():
    torch.manual_seed(0)
    return Attention().eval(), {}


def calls():
    generator = torch.Generator().manual_seed(1)
    for length in range(5, 41, 3):
        yield (torch.randn(1, length, 32, generator=generator),), {}
