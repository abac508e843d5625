"""A compiled call raises: is that a compiler bug, or does the program fail without the compiler too?

A healthy model and one whose reshape takes 64 tokens for granted are each called in eager first. What
eager raises as well, and for the same cause, is no compiler bug, however the compiled error reads.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import torch
from torch import nn

from complab.measure import policies, workload

WIDTH = 256
TAKEN_FOR_GRANTED = 64


class AssumesLength(nn.Module):
    """A projection whose output is reshaped as if every input had 64 tokens."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.project(x).reshape(x.shape[0], TAKEN_FOR_GRANTED, WIDTH)


def subjects(bench):
    """The healthy model with its batch, and the faulty one with an input of another length."""
    settings = bench.settings
    model, tokens = workload.model_and_batch(bench)
    torch.manual_seed(settings["seed"])
    faulty = AssumesLength().eval().to(bench.device)
    own = settings["settings"]
    activations = torch.rand(own["batch"], own["wrong_length"], WIDTH).to(bench.device)
    return {"healthy": (model, (tokens,)), "assumes_64": (faulty, (activations,))}


@torch.no_grad()
def timed(bench):
    """Call each model in eager, then compiled, and compare what came of it."""
    for case, (model, arguments) in subjects(bench).items():
        bench.attempt(case, model, policies.compile_with(bench.policy, model), arguments)
