"""What is compiled: the controlled transformer all experiments share, and its requests."""

import torch
import torch.nn.functional as functional
from torch import nn


class CausalBlock(nn.Module):
    """Pre-norm attention and MLP; maps (B, T, dim) to (B, T, dim)."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.to_query_key_value = nn.Linear(dim, 3 * dim)
        self.from_heads = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def attend(self, x):
        """Causal self-attention over dimension 1."""
        batch, length, dim = x.shape
        packed = self.to_query_key_value(x).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.from_heads(mixed.transpose(1, 2).reshape(batch, length, dim))

    def forward(self, x):
        x = x + self.attend(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class TokenModel(nn.Module):
    """Token ids (B, T) to logits (B, T, vocabulary); T up to max_length."""

    def __init__(self, vocabulary: int, dim: int, heads: int, blocks: int, max_length: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(max_length, dim)
        self.blocks = nn.ModuleList([CausalBlock(dim, heads) for _ in range(blocks)])
        self.final_norm = nn.LayerNorm(dim)
        self.to_logits = nn.Linear(dim, vocabulary)

    def forward(self, idx):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        return self.to_logits(self.final_norm(x))


def build_model(sizes: dict, seed: int, device: str, model: type[TokenModel] = TokenModel) -> TokenModel:
    """The controlled model, or a variant of it, in inference mode; weights drawn from ``seed``."""
    torch.manual_seed(seed)
    return model(**sizes).eval().to(device)


def model_and_requests(bench) -> tuple[TokenModel, list]:
    """The controlled model and one token tensor per length of the cell's stream, on the bench's device."""
    settings = bench.settings
    model = build_model(settings["workload"], settings["seed"], bench.device)
    lengths = settings["settings"]["lengths"]
    return model, build_requests(lengths, settings["workload"]["vocabulary"], settings["seed"], bench.device)


def model_and_batch(bench, model: type[TokenModel] = TokenModel) -> tuple[TokenModel, torch.Tensor]:
    """The controlled model, or a variant of it, and the batch that the experiment's settings describe."""
    settings, own = bench.settings, bench.settings["settings"]
    sizes, seed = settings["workload"], settings["seed"]
    tokens = build_batch(own["batch"], own["length"], sizes["vocabulary"], seed, bench.device)
    return build_model(sizes, seed, bench.device, model), tokens


def build_requests(lengths: list[int], vocabulary: int, seed: int, device: str) -> list:
    """One token tensor (1, T) int64 per length, drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocabulary, (1, length), generator=generator).to(device) for length in lengths]


def build_batch(batch: int, length: int, vocabulary: int, seed: int, device: str) -> torch.Tensor:
    """One token tensor (batch, length) int64, drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (batch, length), generator=generator).to(device)


def pointwise_chain(x):
    """Sixteen cheap elementwise operations, each a pass over memory unless they are fused."""
    for _ in range(4):
        x = torch.relu(x * 0.5 + 0.25) - 0.125
    return x


def build_square(size: int, seed: int, device: str):
    """A matrix (size, size) of numbers between 0 and 1, drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, size, generator=generator).to(device)


def build_training_batch(shape: tuple[int, int], vocabulary: int, seed: int, device: str) -> tuple:
    """Tokens and targets (B, T) int64, drawn one after the other from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = (torch.randint(vocabulary, shape, generator=generator) for _ in range(2))
    return tokens.to(device), targets.to(device)
