"""A region compiles: has it also become better?

Four regions, one ledger row each. Two of fixed shape, one bound by matrix products and one a chain that
can be fused, are compared with eager and timed. A loop over varying shapes is only timed as a whole, and
what was not measured there stays open. The last region prints, which breaks its graph.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import contextlib
import os
from functools import partial

import torch
from torch import nn

from complab.errors import UsageProblem
from complab.measure import policies, workload

CASE = "region"


def printing_chain(x):
    """The pointwise chain with a print in its middle."""
    x = workload.pointwise_chain(x)
    print("halfway", tuple(x.shape))
    return workload.pointwise_chain(x)


def _products(bench, size: int):
    torch.manual_seed(bench.settings["seed"])
    layers = [nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size)]
    return nn.Sequential(*layers).eval().to(bench.device)


def _fixed_shape(bench):
    """The region of a policy with one input, and that input."""
    size = bench.settings["settings"]["size"]
    x = workload.build_square(size, bench.settings["seed"], bench.device)
    if bench.policy == "gemm":
        return _products(bench, size), x
    functions = {"pointwise": workload.pointwise_chain, "print": printing_chain}
    if bench.policy not in functions:
        raise UsageProblem(f"policy '{bench.policy}' is no region; scripts/{__name__}.py has another four")
    return functions[bench.policy], x


def _compare_and_time(bench):
    function, x = _fixed_shape(bench)
    compiled = policies.compile_with("default", function)
    expected = function(x)
    with bench.capturing(CASE):
        seconds, actual = bench.clock.time(compiled, x)
    if bench.agree(CASE, expected, actual, call=0):
        bench.record("first_call", seconds, "s", case=CASE)
    bench.steady({CASE: (partial(function, x), partial(compiled, x))})


def _loop(bench):
    model, requests = workload.model_and_requests(bench)
    compiled = policies.compile_with("default", model)
    with bench.capturing(CASE):
        bench.loop(CASE, model, compiled, [(tokens,) for tokens in requests])


@torch.no_grad()
def timed(bench):
    """Fill the row of the cell's policy, as far as it is measured."""
    if bench.policy == "shape-varying":
        _loop(bench)
    elif bench.policy == "print":
        # What the region prints costs its time, but is no part of the record.
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            _compare_and_time(bench)
    else:
        _compare_and_time(bench)
