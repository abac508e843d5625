"""Does the structured trace tell the same as the log and Dynamo's own state?

One process is traced while it compiles the healthy model, a function with a graph break and a stream of
lengths. Its trace becomes a folder of pages, and what can be counted in it is held against the others.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import torch

from complab.measure import policies, workload


def with_break(x):
    """Chooses by a Python branch on a tensor's value."""
    product = torch.sin(x) * x
    if x.sum().item() > 0:
        product = product * 2
    return torch.cos(product)


def normalised(x):
    """Columns that sum to one; how many there are varies from call to call."""
    return torch.softmax(x * 2, dim=0)


def traced(bench):
    """What is traced: each function with its calls in order."""
    settings = bench.settings
    size, lengths = settings["settings"]["size"], settings["settings"]["lengths"]
    sizes, seed, device = settings["workload"], settings["seed"], bench.device
    tokens = workload.build_requests([sizes["max_length"] // 2], sizes["vocabulary"], seed, device)
    generator = torch.Generator().manual_seed(seed)
    square = torch.rand(size, size, generator=generator).to(device)
    batches = [torch.rand(size, length, generator=generator).to(device) for length in lengths]
    return {
        "model": (workload.build_model(sizes, seed, device), [(tokens[0],)]),
        "with_break": (with_break, [(square,)]),
        "stream": (normalised, [(x,) for x in batches]),
    }


@torch.no_grad()
def timed(bench):
    """Serve the same calls without a trace, and tell from Dynamo's state what happened to each."""
    for case, (function, calls) in traced(bench).items():
        bench.serve(case, function, policies.compile_with(bench.policy, function), calls)
