"""Which compiler layer changes a program first: capture, AOTAutograd or code generation?

The controlled model runs under a backend of each layer, held against eager and against float64. Three
planted faults, each of which one layer cannot bear, show whether a bisection over the layers names it.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import ctypes
import math
from copy import deepcopy

import torch
import torch.nn.functional as functional

from complab.measure import policies, workload

CASE = "model"


@torch.library.custom_op("complab::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    """Half of x; its gradient is handed through foreign code."""
    return x / 2


@halved.register_fake
def _(x):
    return torch.empty_like(x)


def _gradient_in_raw_memory(ctx, gradient):
    """Right in eager; while AOTAutograd traces it, no tensor has memory that foreign code could read."""
    kept = gradient.cpu().contiguous()
    copy = torch.empty_like(kept)
    ctypes.memmove(copy.data_ptr(), kept.data_ptr(), kept.nbytes)
    return copy.to(gradient.device) / 2


halved.register_autograd(_gradient_in_raw_memory)


def branches_on_a_value(x):
    """Right in eager; no single graph holds a Python branch on a tensor's value."""
    return torch.sin(x) if x.sum() > 0 else torch.cos(x)


def differentiates_outside_torch(x):
    """Right in eager and when only captured; its backward pass cannot be traced ahead of time."""
    return torch.sin(halved(x))


def draws_random_numbers(x):
    """Repeats itself under a seed, but Inductor draws other random numbers than eager does."""
    return functional.dropout(x, p=0.5, training=True) * 2


FAULTS = {
    "dynamo_fault": branches_on_a_value,
    "aot_fault": differentiates_outside_torch,
    "inductor_fault": draws_random_numbers,
}


def timed(bench):
    """Compare the model under one backend with eager, or bisect the planted faults."""
    if bench.policy == "planted-faults":
        _bisect_faults(bench)
    else:
        _run_model(bench)


def _bisect_faults(bench):
    size = bench.settings["settings"]["size"]

    def arguments():
        return (torch.linspace(0, 1, size, device=bench.device, requires_grad=True),)

    for case, program in FAULTS.items():
        bench.bisect(case, lambda program=program: program, arguments, fullgraph=True)


@torch.no_grad()
def _run_model(bench):
    settings = bench.settings["settings"]
    sizes, seed = bench.settings["workload"], bench.settings["seed"]
    model = workload.build_model(sizes, seed, bench.device)
    shape = (settings["batch"], settings["length"])
    tokens, targets = workload.build_training_batch(shape, sizes["vocabulary"], seed, bench.device)
    eager, again = model(tokens), model(tokens)
    exact = deepcopy(model).double()(tokens)
    compiled = policies.compile_with(bench.policy, model)
    with bench.capturing(CASE):
        seconds, actual = bench.clock.time(compiled, tokens)
    if bench.agree(CASE, eager, actual, call=0):
        bench.record("first_call", seconds, "s", case=CASE)
    bench.say(f"{CASE}: first call {seconds:.2f} s")
    for metric, logits in (("eager_loss", eager), ("loss", actual)):
        _record_finite(bench, metric, functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    for metric, one, other in (
        ("eager_error", eager, exact),
        ("compiled_error", actual, exact),
        ("eager_repeat_diff", again, eager),
    ):
        _record_finite(bench, metric, (one - other).abs().max())


def _record_finite(bench, metric, scalar):
    """Record a number; that an output is none is told by its agreement with eager."""
    if math.isfinite(value := scalar.item()):
        bench.record(metric, value, "1", case=CASE)
