"""Does it matter where a graph breaks, and why do the instruments disagree about a break inside a loop?

The controlled model checks its activations for overflow nowhere, before its blocks, or between two of
them. The check is one Python branch on a tensor's value. Inside the loop over the blocks it costs more
than a break: Dynamo gives up the frame and compiles what the loop calls.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

from functools import partial

import torch

from complab.measure import policies, workload
from complab.measure.workload import TokenModel

# Far above any activation of this model: the branch depends on the data and always goes the same way.
LARGEST = 1.0e6


class ChecksBeforeBlocks(TokenModel):
    """Clamps activations that are too large before the first block."""

    def forward(self, idx):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        if x.abs().amax().item() > LARGEST:
            x = x.clamp(-LARGEST, LARGEST)
        for block in self.blocks:
            x = block(x)
        return self.to_logits(self.final_norm(x))


class ChecksMidStack(TokenModel):
    """Clamps activations that are too large half way through the blocks."""

    def forward(self, idx):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        for number, block in enumerate(self.blocks):
            if number == len(self.blocks) // 2 and x.abs().amax().item() > LARGEST:
                x = x.clamp(-LARGEST, LARGEST)
            x = block(x)
        return self.to_logits(self.final_norm(x))


MODELS = {"none": TokenModel, "before-blocks": ChecksBeforeBlocks, "mid-stack": ChecksMidStack}


def subjects(bench):
    """The policy's model with one batch; weights and tokens are those of every policy."""
    model, tokens = workload.model_and_batch(bench, MODELS[bench.policy])
    return {"model": (model, (tokens,))}


@torch.no_grad()
def timed(bench):
    """Compile the policy's model, compare it with eager, and time both."""
    ((case, (model, arguments)),) = subjects(bench).items()
    compiled = policies.compile_with("default", model)
    if bench.attempt(case, model, compiled, arguments):
        bench.steady({case: (partial(model, *arguments), partial(compiled, *arguments))})
