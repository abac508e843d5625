"""Which shape policy suits a stream of varying lengths, and is compiling worth it at all?

The same calls go through the controlled model under each policy; compile attempts, seconds of the
sweep and the steady state after it are what the choice is made from.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import torch

from complab.measure import policies, workload


@torch.no_grad()
def timed(bench):
    """Sweep the lengths once under the policy, then time whole passes over them."""
    model, requests = workload.model_and_requests(bench)
    sweep = [(policies.prepare_input(bench.policy, tokens, dimension=1),) for tokens in requests]
    compiled = policies.compile_with(bench.policy, model)
    with bench.capturing("model"):
        bench.serve("model", model, compiled, sweep)
    bench.steady_stream("model", model, compiled, sweep)
