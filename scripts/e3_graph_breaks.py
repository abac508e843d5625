"""Three instruments look at one graph break: do they agree, and what does the break cost?

The same function is written with a branch on a tensor's value, which breaks the graph, and with that
choice kept inside the graph. Explain, the log and fullgraph are asked about both and about the model.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

from functools import partial

import torch

from complab.measure import policies, workload


def with_break(x):
    """Chooses by a Python branch on a tensor's value."""
    product = torch.sin(x) @ x
    if x.sum().item() > 0:
        product = product * 2
    return torch.cos(product)


def without_break(x):
    """Makes the same choice as a tensor operation."""
    product = torch.sin(x) @ x
    product = torch.where(x.sum() > 0, product * 2, product)
    return torch.cos(product)


def _square(bench):
    size = bench.settings["settings"]["size"]
    return workload.build_square(size, bench.settings["seed"], bench.device)


def subjects(bench):
    """What the capture probes look at: the healthy model and both functions."""
    settings = bench.settings
    model = workload.build_model(settings["workload"], settings["seed"], bench.device)
    length = settings["workload"]["max_length"] // 2
    tokens = workload.build_requests(
        [length], settings["workload"]["vocabulary"], settings["seed"], bench.device
    )
    square = _square(bench)
    return {
        "model": (model, (tokens[0],)),
        "with_break": (with_break, (square,)),
        "without_break": (without_break, (square,)),
    }


@torch.no_grad()
def timed(bench):
    """Compile both functions, compare with eager, and time all of them in one window."""
    square = _square(bench)
    steady = {}
    for case, function in (("with_break", with_break), ("without_break", without_break)):
        compiled = policies.compile_with(bench.policy, function)
        expected = function(square)
        with bench.capturing(case):
            seconds, actual = bench.clock.time(compiled, square)
        if bench.agree(case, expected, actual, call=0):
            bench.record("first_call", seconds, "s", case=case)
        bench.say(f"{case}: first call {seconds:.2f} s")
        steady[case] = (partial(function, square), partial(compiled, square))
    bench.steady(steady)
