"""Why is a service that compiles static shapes far slower than the same service in eager mode?

A stream of requests of many lengths goes through the controlled model once. Every answer is right,
so only the fate of each call (new variant, reuse, refused attempt, eager after the limit) tells what
the seconds were spent on.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import torch

from complab.measure import policies, workload


def subjects(bench):
    """What the capture probes look at: the model with the first request."""
    model, requests = workload.model_and_requests(bench)
    return {"model": (model, (requests[0],))}


@torch.no_grad()
def timed(bench):
    """Serve the stream once, call by call, then time whole passes over it in its final state."""
    model, requests = workload.model_and_requests(bench)
    stream = [(tokens,) for tokens in requests]
    compiled = policies.compile_with(bench.policy, model)
    with bench.capturing("model"):
        bench.serve("model", model, compiled, stream)
    bench.steady_stream("model", model, compiled, stream)
