"""What becomes of each call when a stream has more lengths than the recompile limit allows variants?

Two lengths more than the limit arrive once each, and then once more: what is refused, what runs eager,
and what is still served by its variant.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import torch

from complab.measure import policies, workload


@torch.no_grad()
def timed(bench):
    """Serve the stream once, call by call."""
    model, requests = workload.model_and_requests(bench)
    compiled = policies.compile_with(bench.policy, model)
    with bench.capturing("model"):
        bench.serve("model", model, compiled, [(tokens,) for tokens in requests])
