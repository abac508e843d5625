"""How many calls until compiling has paid for itself, from a cold cache and from a warm one?

The first call is the price, split into the stages of the compiler; the steady state is what each later
call saves. One of the workloads is too small for compiling ever to pay.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import torch

from complab.errors import UsageProblem
from complab.measure import dynamo, policies, stages, workload

CASE = "region"


def tiny(x):
    """One operation on a few elements: less work than the guards of its compiled form."""
    return x + 1


def _model(bench):
    settings = bench.settings
    model = workload.build_model(settings["workload"], settings["seed"], bench.device)
    length = settings["workload"]["max_length"] // 2
    vocabulary = settings["workload"]["vocabulary"]
    return model, workload.build_requests([length], vocabulary, settings["seed"], bench.device)[0]


def _chain(bench):
    size = bench.settings["settings"]["size"]
    return workload.pointwise_chain, workload.build_square(size, bench.settings["seed"], bench.device)


def _tiny(bench):
    return tiny, torch.zeros(8, device=bench.device)


# What builds the workload, and calls per timed pass: so many that the clock does not matter.
WORKLOADS = {"model": (_model, 1), "chain": (_chain, 10), "tiny": (_tiny, 1000)}


@torch.no_grad()
def timed(bench):
    """Time the first call and its stages, compare with eager, then time the steady state."""
    if bench.policy not in WORKLOADS:
        raise UsageProblem(f"policy '{bench.policy}' is no workload; choose from {', '.join(WORKLOADS)}")
    build, repeats = WORKLOADS[bench.policy]
    function, x = build(bench)
    compiled = policies.compile_with("default", function)
    expected = function(x)
    with bench.capturing(CASE), dynamo.compile_spans() as spans:
        seconds, actual = bench.clock.time(compiled, x)
    if bench.agree(CASE, expected, actual, call=0):
        bench.record("first_call", seconds, "s", case=CASE)
        stages.record(bench, CASE, seconds, spans)
    bench.say(f"{CASE}: first call {seconds:.2f} s")

    def several(subject):
        def run():
            for _ in range(repeats):
                subject(x)

        return run

    bench.steady({CASE: (several(function), several(compiled))}, repeats)
