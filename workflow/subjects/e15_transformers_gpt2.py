"""transformers 5.24.0: a GPT-2 language model for inference, compiled whole with `torch.compile(model)`.

It reads prompts that get longer from call to call, as in a conversation. Does one graph serve every length,
and is it faster than eager?
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def make():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config).eval().requires_grad_(False), {}


def calls():
    generator = torch.Generator().manual_seed(1)
    for length in range(6, 42, 3):
        yield (torch.randint(0, 256, (1, length), generator=generator),), {}
