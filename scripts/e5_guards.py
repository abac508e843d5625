"""Which assumptions does a compiled function stand on, and which of them does dynamic=True take away?

A stream of lengths and a change of the tokens' type go through the model compiled for static shapes;
each recompile says which guard of which variant failed. Then one thing at a time changes between two
calls of a small function, compiled with dynamic=False and again with dynamic=True.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from complab import guards
from complab.measure import calls, policies, workload

SCALE = 2
ROWS, COLUMNS = 8, 12


def timed(bench):
    """The stream under the policy `static`, one changed thing after another under `forensics`."""
    if bench.policy == "forensics":
        _forensics(bench)
    else:
        _stream(bench)


@torch.no_grad()
def _stream(bench):
    model, tokens = workload.model_and_requests(bench)
    # The same tokens in another type, after a reset: no variant of the stream may be in the way.
    cases = {"model": tokens, "int32": [tokens[0], tokens[0].int()]}
    for case, requests in cases.items():
        torch.compiler.reset()
        compiled = policies.compile_with(bench.policy, model)
        with bench.capturing(case):
            bench.serve(case, model, compiled, [(each,) for each in requests])


# What changes between two calls.


def _double(x):
    return torch.sin(x) * 2


def _multiply(x, number):
    return torch.sin(x) * number


def _scale_by_global(x):
    return torch.sin(x) * SCALE


class _ScaleByAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2

    def forward(self, x):
        return torch.sin(x) * self.factor


@contextlib.contextmanager
def _attribute(holder, name: str, value):
    """The attribute with another value."""
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextlib.contextmanager
def _other_global():
    global SCALE
    before, SCALE = SCALE, 3
    try:
        yield
    finally:
        SCALE = before


@dataclass(frozen=True)
class Change:
    """Two calls of a function that differ in one thing: an argument, or the state the second is made in."""

    function: Callable
    first: tuple
    second: tuple
    around_second: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext


def changes(device: str) -> dict[str, Change]:
    """The changes by case; one of device only where there are two devices."""
    x = torch.rand(ROWS, COLUMNS, device=device)
    module = _ScaleByAttribute()
    told = {
        "shape": Change(_double, (x,), (torch.rand(ROWS + 2, COLUMNS, device=device),)),
        "dtype": Change(_double, (x,), (x.double(),)),
        "constant": Change(_multiply, (x, 3), (x, 4)),
        "requires_grad": Change(_double, (x,), (x.clone().requires_grad_(),)),
        "grad_mode": Change(_double, (x,), (x,), torch.no_grad),
        "strides": Change(_double, (x,), (x.t().contiguous().t(),)),
        "attribute": Change(module, (x,), (x,), lambda: _attribute(module, "factor", 3)),
        "global": Change(_scale_by_global, (x,), (x,), _other_global),
    }
    if device == "cuda":
        told["device"] = Change(_double, (x.cpu(),), (x,))
    return told


def _forensics(bench):
    torch.manual_seed(bench.settings["seed"])
    for case, change in changes(bench.device).items():
        recompiles, text = _recompiles(bench, case, change, dynamic=False)
        if text:
            assumption = guards.classify_guard(text)
            bench.record("assumption", 1, "assumptions", case=case, detail=assumption.kind)
        remaining, _ = _recompiles(bench, case, change, dynamic=True)
        if recompiles:
            bench.record("removed_by_dynamic", not remaining, "1", case=case)
        bench.say(f"{case}: recompiles {recompiles}, {remaining} with dynamic=True; {text}")


def _recompiles(bench, case: str, change: Change, dynamic: bool) -> tuple[int, str]:
    """Variants that the second call adds to the first's, as recorded, and the guard that failed."""
    torch.compiler.reset()
    watcher = calls.CallWatcher(change.function)
    compiled = torch.compile(change.function, backend="eager", dynamic=dynamic)
    compiled(*change.first)
    kept, position = watcher.variants(), bench.begin_log(case, int(dynamic))
    with change.around_second():
        expected = change.function(*change.second)
        actual = compiled(*change.second)
    bench.agree(case, expected, actual, call=int(dynamic))
    logged = bench.end_log(position, case, int(dynamic))
    failures = [each for item in logged.recompiles for each in item.failures]
    text = " | ".join(guards.guard_code(each.text) for each in failures)
    added = watcher.variants() - kept
    bench.record(
        "dynamic_recompiles" if dynamic else "static_recompiles", added, "recompiles", case=case, detail=text
    )
    return added, text
